"""Artifacts appear whole or not at all."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import LocalStorage

pytestmark = pytest.mark.anyio


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "storage")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(bytes(range(256)) * 8192)
    return path


async def test_what_was_put_is_got(storage: LocalStorage, file: Path, tmp_path: Path) -> None:
    artifact = await storage.put("steps/1/vmlinux", file)
    data = file.read_bytes()
    assert (artifact.name, artifact.size) == ("vmlinux", len(data))
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    await storage.get("steps/1/vmlinux", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


async def test_a_range_is_read(storage: LocalStorage, file: Path) -> None:
    await storage.put("a", file)
    start, stop = 1000, (1 << 20) + 77
    read = b"".join([chunk async for chunk in storage.read("a", start, stop)])
    assert read == file.read_bytes()[start:stop]


async def test_a_file_that_cannot_be_stored_leaves_nothing(
    storage: LocalStorage, tmp_path: Path
) -> None:
    with pytest.raises(InfrastructureError, match="cannot store a/b"):
        await storage.put("a/b", tmp_path / "absent")
    assert [path for path in storage.root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a//b", ".hidden", "a/../b", ""])
async def test_a_key_that_leaves_the_folder_is_refused(
    storage: LocalStorage, file: Path, key: str
) -> None:
    with pytest.raises(InfrastructureError, match="not a storage key"):
        await storage.put(key, file)


async def test_what_is_not_stored_is_named(storage: LocalStorage, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no steps/9/x"):
        await storage.get("steps/9/x", tmp_path / "x")


async def test_a_file_that_is_given_away_is_moved(storage: LocalStorage, file: Path) -> None:
    data = file.read_bytes()
    artifact = await storage.put("steps/1/vmlinux", file, move=True)
    assert not file.exists()
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    assert (storage.root / "steps/1/vmlinux").read_bytes() == data


async def test_a_copy_stays_when_the_first_is_removed(storage: LocalStorage, file: Path) -> None:
    await storage.put("steps/1/vmlinux", file)
    await storage.copy("steps/1/vmlinux", "steps/2/vmlinux")
    await storage.remove("steps/1")
    assert (storage.root / "steps/2/vmlinux").read_bytes() == file.read_bytes()


async def test_what_is_not_stored_cannot_be_copied(storage: LocalStorage) -> None:
    with pytest.raises(InfrastructureError) as caught:
        await storage.copy("steps/1/vmlinux", "steps/2/vmlinux")
    assert caught.value.reason == "artifact_missing"
    assert not list(storage.root.rglob("*vmlinux*"))


async def test_folders_have_the_age_of_their_newest_file(storage: LocalStorage, file: Path) -> None:
    for number, ago in ((1, 1000), (2, 10)):
        await storage.put(f"suitecache/a/{number}", file)
        at = time.time() - ago
        os.utime(storage.root / f"suitecache/a/{number}", (at, at))
    ages = await storage.ages("suitecache", 1)
    assert ages == {"suitecache/a": pytest.approx(10, abs=5)}
