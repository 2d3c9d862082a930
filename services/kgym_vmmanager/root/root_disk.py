"""The root disk of a step's guests, and the kernel config that it needs."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from kgym.api.steps import DISK_SYMBOLS, BuildArtifact, ReproduceSpec, RootImage, UsedRoot, on_disk
from kgym.bugs.config_symbols import refuse_without
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym.worker.context import StepContext
from kgym_vmmanager.root import debian_disk, image_file
from kgym_vmmanager.root.debian_disk import DISK, PACKED
from kgym_vmmanager.root.image_file import Fetch

_COPY_SECONDS = 600.0
# Bytes of disks that a host's cache keeps.
_BUDGET = 32 << 30


@dataclass(frozen=True, slots=True)
class RootDisk:
    """A disk in the step's folder; each VM has a link to it, and writes elsewhere."""

    # Our initramfs mounts it and copies SSH server, keys and runner to /kgym on it, with their own
    # libraries, so an image of any distribution will do. /kgym is not a tmpfs, as the runner links
    # the program into its folders on the disk, under changing names.

    path: Path
    packed: Path
    """The disk packed by zstd, for bundles."""
    used: UsedRoot
    size: int
    """Its bytes, which a guest may all overwrite."""


async def root_disk(run: StepContext, cache: Path, folder: Path, fetch: Fetch) -> RootDisk | None:
    """Place the disk of the spec in `folder` and return it; None for an initramfs.

    `fetch` gets images from elsewhere. Raises UserError `config_lacks` if the kernel cannot start
    from a disk, and what `image_file.make` raises.
    """
    root = run.spec(ReproduceSpec).vm.root
    if not on_disk(root):
        return None
    await _check_config(run, folder)

    async def make(kept: Path) -> None:
        if not isinstance(root, RootImage):
            await debian_disk.make(run, kept)
        else:
            await image_file.make(run, root, fetch, kept)

    name = image_file.key(run, root) if isinstance(root, RootImage) else debian_disk.recipe()
    disks = FolderCache(cache / "roots")
    kept, _ = await disks.get(name, make, held=run.held)
    await asyncio.to_thread(disks.trim, _BUDGET)
    used = debian_disk.used(kept)
    run.log(f"root disk: {used.system or used.format}, SHA-256 {used.sha256}")
    path = await _placed(kept / DISK, folder / DISK)
    size = await asyncio.to_thread(image_file.size, path, str(used.format))
    return RootDisk(path, kept / PACKED, used, size)


async def _check_config(run: StepContext, folder: Path) -> None:
    if BuildArtifact.CONFIG not in {artifact.name for artifact in run.input_artifacts("build")}:
        return
    config = folder / BuildArtifact.CONFIG
    await run.fetch("build", BuildArtifact.CONFIG, config)
    refuse_without(config.read_text(errors="replace"), DISK_SYMBOLS)


async def _placed(source: Path, target: Path) -> Path:
    """Put the disk where VMs can link to it: by a link, or by one copy from another file system."""
    try:
        os.link(source, target)
    except OSError:
        argv: list[str | Path] = ["cp", "--sparse=always", "--", source, target]
        await proc.run(argv, timeout=_COPY_SECONDS)
    return target
