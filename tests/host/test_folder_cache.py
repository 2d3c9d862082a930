"""Cached folders are whole, made once, and made again when they were damaged."""

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kgym.host.folder_cache import FolderCache, entries

pytestmark = pytest.mark.anyio


class Maker:
    """Fills an entry, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("content")
        await asyncio.sleep(0.05)


async def test_an_entry_is_made_once_for_all_that_want_it(tmp_path: Path) -> None:
    make = Maker()
    caches = [FolderCache(tmp_path) for _ in range(4)]
    got = await asyncio.gather(*(cache.get("key", make) for cache in caches))
    assert make.calls == 1
    assert sorted(there for _, there in got) == [False, True, True, True]
    assert {folder for folder, _ in got} == {tmp_path / "key"}


async def test_a_failed_make_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    async def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    cache = FolderCache(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        await cache.get("key", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".key.lock"]
    _, there = await cache.get("key", Maker())
    assert not there


@pytest.mark.parametrize("damage", ["truncate", "remove", "add"])
async def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    make, cache = Maker(), FolderCache(tmp_path)
    folder, _ = await cache.get("key", make)
    file = folder / "sub" / "file"
    match damage:
        case "truncate":
            file.write_text("")
        case "remove":
            file.unlink()
        case "add":
            (folder / "sub" / "more").write_text("")
    later = FolderCache(tmp_path)
    folder, there = await later.get("key", make)
    assert not there
    assert file.read_text() == "content"
    assert (await later.get("key", make))[1]


async def test_what_a_killed_process_left_half_made_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".key.part-dead").mkdir()
    await FolderCache(tmp_path).get("key", Maker())
    assert not (tmp_path / ".key.part-dead").exists()


async def test_entries_tell_their_size_and_when_they_were_last_taken(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path / "trees")
    for key in ("a", "b"):
        with ExitStack() as held:
            await cache.get(key, Maker(), held=held)
    os.utime(tmp_path / "trees" / ".b.use", (0, 0))
    with ExitStack() as held:
        await FolderCache(tmp_path / "sources" / "trees").get("c", Maker(), held=held)
    cached = {entry.key: entry for entry in entries(tmp_path)}
    assert sorted(cached) == ["a", "b", "c"]
    assert all(entry.size >= 4096 for entry in cached.values())
    assert cached["b"].used_at == 0
    assert cached["a"].used_at == pytest.approx(time.time(), abs=20)


async def test_an_entry_is_not_removed_while_it_is_used(tmp_path: Path) -> None:
    make, cache = Maker(), FolderCache(tmp_path / "trees")
    with ExitStack() as first, ExitStack() as second:
        folder, _ = await cache.get("a", make, held=first)
        await cache.get("a", make, held=second)
        [entry] = entries(tmp_path)
        first.close()
        assert not entry.remove()
        second.close()
        assert entry.remove()
    assert not folder.exists()
    assert entries(tmp_path) == []
    _, there = await cache.get("a", make)
    assert not there


async def test_an_entry_is_not_removed_while_it_is_made(tmp_path: Path) -> None:
    async def make(folder: Path) -> None:
        (folder / "half").write_text("x" * 5000)
        [entry] = entries(tmp_path)
        assert not entry.remove()

    folder, _ = await FolderCache(tmp_path / "trees").get("a", make)
    assert (folder / "half").exists()


async def test_what_is_left_of_a_killed_process_is_an_entry_too(tmp_path: Path) -> None:
    part = tmp_path / "trees" / ".a.part-dead"
    part.mkdir(parents=True)
    (part / "file").write_text("x" * 5000)
    (tmp_path / "trees" / ".a.lock").touch()
    [entry] = entries(tmp_path)
    assert entry.remove()
    assert not part.exists()


async def test_a_fresh_entry_replaces_one_that_is_intact(tmp_path: Path) -> None:
    make, cache = Maker(), FolderCache(tmp_path)
    await cache.get("key", make)
    _, there = await cache.get("key", make, fresh=True)
    assert (there, make.calls) == (False, 2)


async def test_a_cache_is_trimmed_to_its_budget_least_recently_used_first(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    cache = FolderCache(root)
    for number, key in enumerate(("a", "b", "c")):
        with ExitStack() as held:
            await cache.get(key, Maker(), held=held)
        os.utime(root / f".{key}.use", (number, number))
    size = entries(tmp_path)[0].size
    with ExitStack() as held:
        await cache.get("a", Maker(), held=held)
        os.utime(root / ".a.use", (0, 0))
        assert cache.trim(2 * size) == ["b"]
    assert cache.trim(2 * size) == []


async def test_an_entry_that_could_not_be_read_is_checked_thoroughly_next_time(
    tmp_path: Path,
) -> None:
    asked = []

    def check(folder: Path, thorough: bool) -> bool:
        asked.append((folder.name, thorough))
        return not thorough

    make, cache = Maker(), FolderCache(tmp_path, check)
    await cache.get("key", make)
    assert (await cache.get("key", make))[1]
    cache.doubt("key")
    assert not (await cache.get("key", make))[1]
    assert asked == [("key", False), ("key", True)]
