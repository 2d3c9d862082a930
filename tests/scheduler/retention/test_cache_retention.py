"""SuiteCache entries and memos in storage go by age and budget."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from kgym.transport.artifact_storage import LocalStorage
from kgym_scheduler.retention.cache_retention import CachePolicy, old_entries, remove_entries

pytestmark = pytest.mark.anyio

DAY = 86400.0


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "storage")


async def put(storage: LocalStorage, key: str, size: int, days: float, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    await storage.put(key, tmp_path / "file")
    at = time.time() - days * DAY
    os.utime(storage.root / key, (at, at))


async def test_what_was_not_used_for_long_goes(storage: LocalStorage, tmp_path: Path) -> None:
    await put(storage, "suitecache/old/f00/image", 10, 100, tmp_path)
    await put(storage, "suitecache/fetched/f00/image", 10, 100, tmp_path)
    await put(storage, "suitecache/fetched/about.json", 10, 1, tmp_path)
    await put(storage, "memo/ab/abcd/build.json", 10, 100, tmp_path)
    await put(storage, "steps/1/f00/vmlinux", 10, 100, tmp_path)
    entries = await old_entries(storage, CachePolicy(age=timedelta(days=90)))
    assert sorted((entry.prefix, entry.bytes, entry.why) for entry in entries) == [
        ("memo/ab/abcd", 10, "age"),
        ("suitecache/old", 10, "age"),
    ]


async def test_beyond_the_budget_the_least_recently_used_go_first(
    storage: LocalStorage, tmp_path: Path
) -> None:
    for name, days in (("a", 3), ("b", 1), ("c", 2)):
        await put(storage, f"suitecache/{name}/f00/image", 10, days, tmp_path)
    entries = await old_entries(storage, CachePolicy(budget=15))
    assert [(entry.prefix, entry.why) for entry in entries] == [
        ("suitecache/a", "budget"),
        ("suitecache/c", "budget"),
    ]
    await remove_entries(storage, entries)
    assert [path.name for path in (storage.root / "suitecache").iterdir()] == ["b"]
