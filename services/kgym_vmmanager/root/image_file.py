"""A submitter's own root disk, which is as hostile as the guest that starts from it.

Files that a qcow2 image names (its backing file, an external data file) are never opened: such an
image is refused, QEMU is told that there is no such file, and could reach none (`vm/qemu_jail.py`).
qemu-img checks the tables in a sandbox: with broken ones QEMU would fail to start or stop midway,
which would look like a failure of the host. Format: QEMU's docs/interop/qcow2.txt.
"""

import asyncio
import hashlib
import os
import shutil
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from kgym.api.steps import ReproduceArtifact, ReproduceResult, RootImage, UsedRoot
from kgym.errors import UserError
from kgym.host import proc
from kgym.host.quoted_words import quoted
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import LimitExceeded, SandboxLimits
from kgym.transport.artifact_storage import sha256_of
from kgym.worker.context import StepContext
from kgym_vmmanager.root.debian_disk import ABOUT, DISK, PACKED, pack, unpack

# Limit of the image file.
MOST_BYTES = 8 << 30
# Limit of the virtual disk in it.
LARGEST = 32 << 30
_SECTOR = 512
_HEADER = struct.Struct(">4sIQIIQI")
_FEATURES = struct.Struct(">Q")
_FEATURES_AT = 72
_CHECK_SECONDS = 300.0
_CHECK_MEMORY = 2 << 30
_CHECK_OUTPUT = 64 << 20
# Statuses of `qemu-img check` for a usable image; 3 means leaked clusters, which only waste space.
_WHOLE = (0, 3)
_SHOWN = 300
# Incompatible features that are harmless: another compression (bit 3), extended L2 entries (bit 4).
_HARMLESS = 1 << 3 | 1 << 4

# Fetches a URL or path with this SHA-256 and at most so many bytes, if the operator allows it.
Fetch = Callable[[StepContext, str, str, Path, int], Awaitable[None]]


async def fetch_nothing(run: StepContext, url: str, digest: str, target: Path, most: int) -> None:
    """Refuse: this worker fetches nothing."""
    del run, digest, target, most
    raise UserError("source_not_allowed", f"{url}: this worker fetches no root disks")


def key(run: StepContext, image: RootImage) -> str:
    """Return the disk's key in the cache."""
    if image.step is not None:
        before = run.input("root", ReproduceResult).root
        parts = [str(before.format), str(before.sha256)]
    else:
        parts = [str(image.format), str(image.sha256)]
    return hashlib.sha256("\n".join(["1", *parts]).encode()).hexdigest()[:32]


async def make(run: StepContext, image: RootImage, fetch: Fetch, folder: Path) -> None:
    """Make the disk's files in `folder`. Raises what `fetch` does, and `bad_root_image`."""
    if image.step is not None:
        about = await _of_step(run, folder)
    else:
        assert image.url is not None
        assert image.sha256 is not None
        await fetch(run, image.url, image.sha256, folder / DISK, MOST_BYTES)
        await check(folder / DISK, str(image.format))
        await pack(folder)
        about = UsedRoot(kind="image", format=image.format, sha256=image.sha256)
    (folder / ABOUT).write_text(about.model_dump_json())


async def _of_step(run: StepContext, folder: Path) -> UsedRoot:
    before = run.input("root", ReproduceResult).root
    kept = {artifact.name for artifact in run.input_artifacts("root")}
    if before.format is None or ReproduceArtifact.ROOT not in kept:
        why = "an initramfs" if before.format is None else "left none: its `bundle` is `none`"
        raise UserError("bad_root_image", f"the step that `vm.root` names has no disk: {why}")
    await run.fetch("root", ReproduceArtifact.ROOT, folder / PACKED)
    await unpack(folder)
    if await asyncio.to_thread(sha256_of, folder / DISK) != before.sha256:
        raise UserError("bad_root_image", "the disk of the step that `vm.root` names is damaged")
    return before


async def check(path: Path, form: str) -> None:
    """Check an image of the stated format, with a temporary folder beside it.

    Raises UserError `bad_root_image`, and InfrastructureError `missing_tool` without qemu-img.
    """
    await asyncio.to_thread(_check_size, path, form)
    if form == "qcow2":
        await _check_tables(path)


async def _check_tables(path: Path) -> None:
    proc.require("qemu-img")
    place = await asyncio.to_thread(_laid_out, path)
    usual = SandboxLimits.of_host()
    memory = min(_CHECK_MEMORY, usual.memory)
    limits = replace(usual, memory=memory, output=_CHECK_OUTPUT)
    argv = ["qemu-img", "check", "-f", "qcow2", f"/image/{path.name}"]
    try:
        box = Sandbox(readonly={"/image": place}, limits=limits)
        done = await box.run(argv, timeout=_CHECK_SECONDS, check=False)
    except LimitExceeded as error:
        raise _refused(f"qemu-img check: {error.message}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, place)
    if done.returncode not in _WHOLE:
        output = quoted(done.output, _SHOWN) or f"nothing, and ends with status {done.returncode}"
        raise _refused(f"qemu-img check says: {output}")


def _laid_out(path: Path) -> Path:
    """Return a folder with the image alone, which the sandbox's user can read."""
    place = prepare(path.with_name("looked-at"))
    path.chmod(0o644)
    os.link(path, place / path.name)
    return place


def size(path: Path, form: str) -> int:
    """Return the size in bytes of the disk in an image; raises UserError `bad_root_image`."""
    with path.open("rb") as file:
        head = file.read(_FEATURES_AT + _FEATURES.size)
    return path.stat().st_size if form == "raw" else _qcow2_size(head)


def _check_size(path: Path, form: str) -> None:
    holds = size(path, form)
    if not 0 < holds <= LARGEST:
        message = f"the disk has {holds:,} bytes; it may have up to {LARGEST >> 30} GiB"
        raise UserError("bad_root_image", message)
    if form == "raw" and holds % _SECTOR:
        raise UserError(
            "bad_root_image",
            f"the file has {holds:,} bytes, a raw disk a multiple of {_SECTOR}: it may be packed,"
            " or cut off",
        )


def _qcow2_size(head: bytes) -> int:
    """Return the disk's size by a qcow2 header; refuse images that depend on other files. Pure."""
    if len(head) < _FEATURES_AT:
        raise _refused("it is too short")
    magic, version, ground, ground_length, _, size, encryption = _HEADER.unpack_from(head)
    if magic != b"QFI\xfb" or version not in {2, 3}:
        raise _refused("it does not begin as one; is it `raw`?")
    if ground or ground_length:
        raise _refused("it has a backing file: `qemu-img convert -O qcow2` makes one that has none")
    if encryption:
        raise _refused("it is encrypted")
    features = 0
    if version == 3:
        if len(head) < _FEATURES_AT + _FEATURES.size:
            raise _refused("it is too short")
        (features,) = _FEATURES.unpack_from(head, _FEATURES_AT)
    if features & ~_HARMLESS:
        raise _refused("it is damaged, still in use, or its data lie in another file")
    return int(size)


def _refused(why: str) -> UserError:
    return UserError("bad_root_image", f"the root disk is no qcow2 image that can be used: {why}")
