"""Artifacts appear whole or not at all: in a local folder and in a bucket alike."""

import asyncio
import fcntl
import hashlib
import itertools
import os
import random
import tempfile
import zlib
from pathlib import Path

import hypothesis
import hypothesis.strategies
import pytest
from hypothesis.strategies import DataObject

from kgym.errors import InfrastructureError
from kgym.transport import file_delta
from kgym.transport.artifact_storage import LocalStorage, Storage
from tests.refused import refused
from tests.transport.places import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.storage


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(bytes(range(256)) * 8192)
    return path


async def test_what_was_put_is_got(storage: Storage, file: Path, tmp_path: Path) -> None:
    artifact = await storage.put("steps/1/vmlinux", file)
    data = file.read_bytes()
    assert (artifact.name, artifact.size) == ("vmlinux", len(data))
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    await storage.get("steps/1/vmlinux", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


async def test_a_range_is_read(storage: Storage, file: Path) -> None:
    await storage.put("a", file)
    start, stop = 1000, (1 << 20) + 77
    read = b"".join([chunk async for chunk in storage.read("a", start, stop)])
    assert read == file.read_bytes()[start:stop]


async def test_a_file_that_cannot_be_stored_leaves_nothing(place: Place, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot store a/b"):
        await place.storage.put("a/b", tmp_path / "absent")
    assert place.sizes() == {}


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a//b", ".hidden", "a/../b", ""])
async def test_a_key_that_leaves_the_folder_is_refused(
    storage: Storage, file: Path, key: str
) -> None:
    with pytest.raises(InfrastructureError, match="not a storage key"):
        await storage.put(key, file)


async def test_what_is_not_stored_is_named(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no steps/9/x"):
        await storage.get("steps/9/x", tmp_path / "x")


async def test_a_file_that_is_given_away_is_moved(place: Place, file: Path) -> None:
    data = file.read_bytes()
    artifact = await place.storage.put("steps/1/vmlinux", file, move=True)
    assert not file.exists()
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    assert place.content("steps/1/vmlinux") == data


async def test_a_copy_stays_when_the_first_is_removed(place: Place, file: Path) -> None:
    storage = place.storage
    await storage.put("steps/1/vmlinux", file)
    await storage.copy("steps/1/vmlinux", "steps/2/vmlinux")
    await storage.remove("steps/1")
    assert place.sizes() == {"steps/2/vmlinux": file.stat().st_size}
    assert place.content("steps/2/vmlinux") == file.read_bytes()


async def test_what_is_not_stored_cannot_be_copied(place: Place) -> None:
    with refused("artifact_missing", kind=InfrastructureError):
        await place.storage.copy("steps/1/vmlinux", "steps/2/vmlinux")
    assert place.sizes() == {}


async def test_what_is_stored_again_is_replaced(place: Place, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for data in (b"second", bytes(2 << 20), b""):
        other.write_bytes(data)
        await place.storage.put("a/b", file)
        await place.storage.put("a/b", other)
        assert place.content("a/b") == data
        await place.elsewhere().get("a/b", tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == data


async def test_folders_have_the_age_of_their_newest_file(place: Place, file: Path) -> None:
    for number, ago in ((1, 1000), (2, 10)):
        await place.storage.put(f"suitecache/a/{number}", file)
        place.age(f"suitecache/a/{number}", ago)
    ages = await place.storage.ages("suitecache", 1)
    assert ages == {"suitecache/a": pytest.approx(10, abs=5)}


async def test_folders_have_the_size_of_all_that_is_below(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for key, size in (("memo/ab/x/y.json", 3), ("memo/ab/x/z", 4), ("memo/ab/y/z", 5)):
        path.write_bytes(bytes(size))
        await storage.put(key, path)
    assert await storage.sizes("memo", 1) == {"memo/ab": 12}
    assert await storage.sizes("memo", 2) == {"memo/ab/x": 7, "memo/ab/y": 5}
    assert await storage.sizes("memo", 3) == {}
    assert await storage.sizes("steps", 2) == {}


async def test_a_folder_is_removed_with_all_below_and_nothing_beside(
    place: Place, file: Path
) -> None:
    for key in ("steps/1/a", "steps/1/b/c", "steps/10/a", "steps/1.a"):
        await place.storage.put(key, file)
    await place.storage.remove("steps/1")
    assert sorted(place.sizes()) == ["steps/1.a", "steps/10/a"]
    await place.storage.remove("steps/1")


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


def _kept(place: Place, prefix: str) -> int:
    return sum(size for key, size in place.sizes().items() if key.startswith(f"{prefix}/"))


async def test_what_is_like_a_base_is_kept_as_its_difference(
    place: Place, base: Path, patched: Path, tmp_path: Path
) -> None:
    storage = place.storage
    data = patched.read_bytes()
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", patched, move=True, base=name)
    assert (kept.name, kept.size) == ("vmlinux", len(data))
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert not patched.exists()
    assert _kept(place, "steps") < len(data) / 20
    await storage.get(kept.key, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    for start, stop in ((0, 10), (100_001, 350_123), (len(data) - 5, len(data))):
        read = b"".join([chunk async for chunk in storage.read(kept.key, start, stop)])
        assert read == data[start:stop]


async def test_what_equals_a_base_takes_nothing(place: Place, base: Path, tmp_path: Path) -> None:
    storage = place.storage
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", base, base=name)
    assert _kept(place, "steps") == 0
    await storage.get(kept.key, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == base.read_bytes()
    read = b"".join([chunk async for chunk in storage.read(kept.key, 5, 70_000)])
    assert read == base.read_bytes()[5:70_000]


@pytest.mark.parametrize("other", [b"", b"short", os.urandom(200_000)])
async def test_what_is_not_like_the_base_is_kept_whole(
    place: Place, base: Path, tmp_path: Path, other: bytes
) -> None:
    storage = place.storage
    file = tmp_path / "vmlinux"
    file.write_bytes(other)
    kept = await storage.put("steps/1/vmlinux", file, base=await storage.put_base(base))
    assert kept.key == "steps/1/vmlinux"
    assert [key for key in place.sizes() if key.startswith("steps/")] == ["steps/1/vmlinux"]


async def test_without_its_base_a_file_is_kept_whole(
    place: Place, base: Path, patched: Path
) -> None:
    storage = place.storage
    kept = await storage.put("steps/1/vmlinux", patched, base="0" * 64)
    assert kept.key == "steps/1/vmlinux"
    name = await storage.put_base(base)
    assert await storage.has_base(name)
    place.overwrite(f"bases/{name}/file", b"somebody's")
    assert not await storage.has_base(name)
    kept = await storage.put("steps/2/vmlinux", patched, base=name)
    assert kept.key == "steps/2/vmlinux"
    assert await storage.put_base(base) == name
    assert await storage.has_base(name)


async def test_a_copy_of_a_delta_outlives_it(
    storage: Storage, base: Path, patched: Path, tmp_path: Path
) -> None:
    kept = await storage.put("steps/1/vmlinux", patched, base=await storage.put_base(base))
    copied = await storage.copy(kept.key, "steps/2/vmlinux")
    await storage.remove("steps/1")
    assert await storage.remove_bases(0) == {}
    await storage.get(copied, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == patched.read_bytes()


async def test_a_base_goes_when_no_key_names_it_for_a_while(
    place: Place, base: Path, patched: Path
) -> None:
    storage = place.storage
    name = await storage.put_base(base)
    await storage.put("steps/1/vmlinux", patched, base=name)
    place.age_base(name, 1e6)
    assert await storage.remove_bases(60) == {}
    await storage.remove("steps/1")
    assert await storage.has_base(name)  # asked for
    assert await storage.remove_bases(60) == {}
    place.age_base(name, 1e6)
    assert await storage.remove_bases(60) == {name: base.stat().st_size}
    assert not await storage.has_base(name)


@pytest.mark.thorough
async def test_no_delta_loses_its_base_to_a_removal_at_the_same_time(
    place: Place, tmp_path: Path, base: Path, patched: Path
) -> None:
    storage, cleaner = place.storage, place.elsewhere()
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
    tmp_path: Path, base: Path
) -> None:
    storage = LocalStorage(tmp_path / "storage")
    stuck = LocalStorage(storage.root, lock_seconds=0.1)
    with (storage.root / ".bases.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InfrastructureError) as raised:
            await stuck.put_base(base)
    assert raised.value.reason == "storage_busy"
    assert str(storage.root / ".bases.lock") in raised.value.message
    assert await stuck.has_base(await stuck.put_base(base))


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["base", "delta", "cut", "size", "parts", "bomb"])
async def test_a_damaged_delta_is_an_error_never_another_file(
    place: Place, base: Path, patched: Path, tmp_path: Path, damage: str
) -> None:
    storage = place.storage
    name = await storage.put_base(base)
    kept = await storage.put("steps/1/vmlinux", patched, base=name)
    of_base = f"bases/{name}/file"
    data = place.content(kept.key)
    if damage == "base":
        place.overwrite(of_base, place.content(of_base)[::-1])
    elif damage == "cut":
        place.overwrite(kept.key, data[: len(data) // 2])
    elif damage == "size":
        place.overwrite(kept.key, data[:8] + (1 << 50).to_bytes(8, "little") + data[16:])
    elif damage == "parts":
        head = data[:48] + (3).to_bytes(4, "little")
        parts = b"".join(n.to_bytes(8, "little") for n in (9, 1 << 40, 2, 0, kept.size, 1 << 63))
        place.overwrite(kept.key, head + zlib.compress(parts + bytes(kept.size)))
    elif damage == "bomb":
        place.overwrite(kept.key, data[:52] + zlib.compress(bytes(32 << 20), 9))
    else:
        place.overwrite(kept.key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with refused("artifact_damaged", kind=InfrastructureError):
        await place.elsewhere().get(kept.key, tmp_path / "again")


@pytest.mark.thorough
@hypothesis.given(hypothesis.strategies.data())
@hypothesis.settings(max_examples=30, deadline=None)
def test_any_two_files_make_a_delta_that_gives_the_second(data: DataObject) -> None:
    piece = hypothesis.strategies.binary(max_size=300)
    pieces = data.draw(hypothesis.strategies.lists(piece, min_size=1, max_size=30))
    order = data.draw(hypothesis.strategies.permutations(pieces))
    old, new = b"".join(pieces) * 8 + b"x", b"".join(order) * 7 + b"y"
    with tempfile.TemporaryDirectory() as name:
        base, other, delta = (Path(name, each) for each in ("old", "new", "delta"))
        base.write_bytes(old)
        other.write_bytes(new)
        if file_delta.write(other, hashlib.sha256(new).hexdigest(), base, delta):
            assert b"".join(file_delta.read(delta, base)) == new
