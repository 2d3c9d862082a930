"""Artifacts appear whole or not at all."""

import asyncio
import fcntl
import hashlib
import itertools
import os
import random
import tempfile
import time
import zlib
from pathlib import Path

import hypothesis
import hypothesis.strategies
import pytest
from hypothesis.strategies import DataObject

from kgym.errors import InfrastructureError
from kgym.transport import file_delta
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


# --- deltas ----------------------------------------------------------------------------------


def _kernel(shift: int, seed: int = 1, functions: int = 3000) -> bytes:
    """Return what is like a linked program: functions that name each other by address."""
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.randrange(40, 200)) for _ in range(functions)]
    if shift:
        bodies[functions // 3] += bytes(shift)
    starts = [0, *itertools.accumulate(len(body) + 4 for body in bodies)]
    called = [chance.randrange(functions) for _ in bodies]
    return b"".join(
        body + starts[to].to_bytes(4, "little") for body, to in zip(bodies, called, strict=True)
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base"
    path.write_bytes(_kernel(0))
    return path


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(_kernel(48))
    return path


def _kept(storage: LocalStorage, prefix: str) -> int:
    folder = storage.root / prefix
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_what_is_like_a_base_is_kept_as_its_difference(
    storage: LocalStorage, base: Path, patched: Path, tmp_path: Path
) -> None:
    data = patched.read_bytes()
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", patched, move=True, base=name)
    assert (kept.name, kept.size) == ("vmlinux", len(data))
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert not patched.exists()
    assert _kept(storage, "steps") < len(data) / 20
    await storage.get(kept.key, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    for start, stop in ((0, 10), (100_001, 350_123), (len(data) - 5, len(data))):
        read = b"".join([chunk async for chunk in storage.read(kept.key, start, stop)])
        assert read == data[start:stop]


async def test_what_equals_a_base_takes_nothing(
    storage: LocalStorage, base: Path, tmp_path: Path
) -> None:
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", base, base=name)
    assert _kept(storage, "steps") == 0
    await storage.get(kept.key, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == base.read_bytes()
    read = b"".join([chunk async for chunk in storage.read(kept.key, 5, 70_000)])
    assert read == base.read_bytes()[5:70_000]


@pytest.mark.parametrize("other", [b"", b"short", os.urandom(200_000)])
async def test_what_is_not_like_the_base_is_kept_whole(
    storage: LocalStorage, base: Path, tmp_path: Path, other: bytes
) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(other)
    kept = await storage.put("steps/1/vmlinux", file, base=await storage.put_base(base))
    assert kept.key == "steps/1/vmlinux"
    assert [path.name for path in (storage.root / "steps/1").iterdir()] == ["vmlinux"]


async def test_without_its_base_a_file_is_kept_whole(
    storage: LocalStorage, base: Path, patched: Path
) -> None:
    kept = await storage.put("steps/1/vmlinux", patched, base="0" * 64)
    assert kept.key == "steps/1/vmlinux"
    name = await storage.put_base(base)
    assert await storage.has_base(name)
    (storage.root / "bases" / name / "file").write_bytes(b"somebody's")
    assert not await storage.has_base(name)
    kept = await storage.put("steps/2/vmlinux", patched, base=name)
    assert kept.key == "steps/2/vmlinux"
    assert await storage.put_base(base) == name
    assert await storage.has_base(name)


async def test_a_copy_of_a_delta_outlives_it(
    storage: LocalStorage, base: Path, patched: Path, tmp_path: Path
) -> None:
    kept = await storage.put("steps/1/vmlinux", patched, base=await storage.put_base(base))
    copied = await storage.copy(kept.key, "steps/2/vmlinux")
    await storage.remove("steps/1")
    assert await storage.remove_bases(0) == {}
    await storage.get(copied, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == patched.read_bytes()


async def test_a_base_goes_when_no_key_names_it_for_a_while(
    storage: LocalStorage, base: Path, patched: Path
) -> None:
    name = await storage.put_base(base)
    await storage.put("steps/1/vmlinux", patched, base=name)
    folder = storage.root / "bases" / name
    os.utime(folder, (1, 1))
    assert await storage.unused_bases(60) == {}
    await storage.remove("steps/1")
    assert await storage.unused_bases(60) == {name: base.stat().st_size}
    assert await storage.has_base(name)  # asked for
    assert await storage.remove_bases(60) == {}
    os.utime(folder, (1, 1))
    assert list(await storage.remove_bases(60)) == [name]
    assert not await storage.has_base(name)


async def test_no_delta_loses_its_base_to_a_removal_at_the_same_time(
    tmp_path: Path, base: Path, patched: Path
) -> None:
    storage, cleaner = LocalStorage(tmp_path / "storage"), LocalStorage(tmp_path / "storage")
    done = False

    async def clean() -> int:
        removed = 0
        while not done:
            removed += len(await cleaner.remove_bases(-1))
        return removed

    cleaning = asyncio.create_task(clean())
    data = patched.read_bytes()
    for number in range(10):
        name = await storage.put_base(base)
        kept = await storage.put(f"steps/{number}/vmlinux", patched, base=name)
        await storage.get(kept.key, tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == data
        await storage.remove(f"steps/{number}")
    done = True
    assert await cleaning > 0


async def test_a_lock_that_nobody_lets_go_of_is_an_error_that_names_it(
    storage: LocalStorage, base: Path
) -> None:
    stuck = LocalStorage(storage.root, lock_seconds=0.1)
    with (storage.root / ".bases.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InfrastructureError) as raised:
            await stuck.put_base(base)
    assert raised.value.reason == "storage_busy"
    assert str(storage.root / ".bases.lock") in raised.value.message
    assert await stuck.has_base(await stuck.put_base(base))


@pytest.mark.parametrize("damage", ["base", "delta", "cut", "size", "parts", "bomb"])
async def test_a_damaged_delta_is_an_error_never_another_file(
    storage: LocalStorage, base: Path, patched: Path, tmp_path: Path, damage: str
) -> None:
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", patched, base=name)
    stored, of_base = storage.root / kept.key, storage.root / "bases" / name / "file"
    data = bytearray(stored.read_bytes())
    if damage == "base":
        of_base.write_bytes(of_base.read_bytes()[::-1])
    elif damage == "cut":
        stored.write_bytes(data[: len(data) // 2])
    elif damage == "size":
        stored.write_bytes(data[:8] + (1 << 50).to_bytes(8, "little") + data[16:])
    elif damage == "parts":
        head = data[:48] + (3).to_bytes(4, "little")
        parts = b"".join(n.to_bytes(8, "little") for n in (9, 1 << 40, 2, 0, kept.size, 1 << 63))
        stored.write_bytes(head + zlib.compress(parts + bytes(kept.size)))
    elif damage == "bomb":
        stored.write_bytes(data[:52] + zlib.compress(bytes(32 << 20), 9))
    else:
        data[-9] ^= 1
        stored.write_bytes(data)
    with pytest.raises(InfrastructureError) as raised:
        await storage.get(kept.key, tmp_path / "again")
    assert raised.value.reason == "artifact_damaged"


@hypothesis.given(hypothesis.strategies.data())
@hypothesis.settings(max_examples=30, deadline=None)
def test_any_two_files_make_a_delta_that_gives_the_second(data: DataObject) -> None:
    piece = hypothesis.strategies.binary(max_size=300)
    pieces = data.draw(hypothesis.strategies.lists(piece, min_size=1, max_size=30))
    order = data.draw(hypothesis.strategies.permutations(pieces))
    old, new = b"".join(pieces) * 8 + b"x", b"".join(order) * 7 + b"y"
    with tempfile.TemporaryDirectory() as name:
        one, other, delta = (Path(name, each) for each in ("old", "new", "delta"))
        one.write_bytes(old)
        other.write_bytes(new)
        if file_delta.write(other, hashlib.sha256(new).hexdigest(), one, delta):
            assert b"".join(file_delta.read(delta, one)) == new
