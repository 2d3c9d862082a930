"""The archive with which a reproduce step is run by hand: it needs nothing but QEMU.

    bundle/kernel, initrd-N.cpio    what the VM of reproducer N booted
    bundle/vmlinux, config          of the kernel, for debuggers and for building it again
    bundle/reproducer…              source and program
    bundle/about.json               what was built, and what is looked for
    bundle/root.zst                 its root disk, if it had one
    bundle/variant-SEED.cpio        the variants that crashed it
    bundle/reproduce.sh [N [SEED]]  boots it, with the console on the terminal

Measured: whole 83 MB in 4 s (vmlinux is 144 MB of 160), small 14 MB in 0.6 s. So the archive is
packed by `kgym job fetch` (`kgym_cli/jobs/artifact_download.py`) unless the spec asks for it.
"""

import asyncio
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kgym.api.steps import BuildResult, ReproduceArtifact, ReproduceSpec, UsedRoot, VmShape
from kgym.host import proc
from kgym_vmmanager.vm.accelerator import Probed
from kgym_vmmanager.vm.provider import Drive
from kgym_vmmanager.vm.qemu import arguments_by_hand

NAME = ReproduceArtifact.BUNDLE
KERNEL = "kernel"
_SECONDS = 600.0
_NICENESS = "5"  # at 19, packing beside busy VMs delayed the step by minutes (measured)
_UNPACK = """\
# What the guest writes to the disk is gone with QEMU.
[ -e disk ] || { zstd -d -q --sparse root.zst -o disk.part && mv disk.part disk; }
"""
# A template for `str.format`.
_SCRIPT = Path(__file__).with_name("reproduce.sh").read_text()


async def pack(folder: Path, files: Mapping[str, Path]) -> Path:
    """Pack the files under these names, at low priority; return the archive in `folder`.

    Files that lie in `folder` are moved, others are copied.
    """
    inside = folder / "bundle"
    inside.mkdir()
    for name, source in files.items():
        await asyncio.to_thread(_place, source, inside / name)
    archive = folder / NAME
    argv: list[str | Path] = [
        *("nice", "-n", _NICENESS, "tar", "--owner=0", "--group=0"),
        *("--use-compress-program=gzip -1", "-cf", archive, "-C", folder, inside.name),
    ]
    try:
        await proc.run(argv, timeout=_SECONDS)
    finally:
        await asyncio.to_thread(shutil.rmtree, inside, ignore_errors=True)
    return archive


def script(shape: VmShape, probed: Probed, programs: int, disk: UsedRoot | None = None) -> str:
    """Return reproduce.sh, with the QEMU command of the VMs. Pure."""
    mark = "@initrd@"
    # Another machine's TSC has another rate.
    elsewhere = probed.model_copy(update={"tsc_khz": None})
    drive = Drive("disk", disk.format) if disk and disk.format else None
    command = shlex.join(arguments_by_hand(shape, elsewhere, "kernel", mark, drive))
    # `probed.host` holds the first line of `qemu-system-x86_64 --version` after its first bar.
    version = "".join(char for char in probed.host.partition("|")[2] if char.isprintable())
    return _SCRIPT.format(
        last=programs - 1,
        version=version.partition("|")[0].strip() or "not known",
        and_zstd=" and zstd" if drive else "",
        unpack=_UNPACK if drive else "",
        command=command.replace(shlex.quote(mark), '"$initrd"'),
    )


def about(
    spec: ReproduceSpec,
    build: BuildResult,
    accelerator: str,
    titles: Sequence[str],
    disk: UsedRoot | None,
) -> str:
    """Return about.json. Pure."""
    return json.dumps(
        {
            "source": build.source_identity,
            "kernel_release": build.kernel_release,
            "compiler": build.compiler_version,
            "compiler_substitution": build.compiler_substitution,
            "titles": list(titles),
            "accelerator": accelerator,
            "instances": spec.instances,
            "time": spec.time,
            "vm": spec.vm.model_dump(mode="json"),
            "root": (disk or UsedRoot()).model_dump(mode="json"),
        },
        indent=1,
    )


def _place(source: Path, target: Path) -> None:
    if source.parent == target.parent.parent:
        source.rename(target)
    else:
        # No hard link: VMs link the same file meanwhile, and tar fails if a file's metadata
        # changes.
        shutil.copy(source, target)
    if target.suffix == ".sh":
        target.chmod(0o755)
