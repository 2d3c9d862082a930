"""The root disk that a worker builds: a small Debian (or Ubuntu, like the host) on ext4.

It resembles syzkaller's create-image, but without systemd: our initramfs starts the guest. One
worker builds it and storage shares it, so all workers have the same disk. Packages come from the
archives of the host's apt. Measured: 70 MB in 2 minutes (idle machine: 40 s), 22 MB packed.
"""

import asyncio
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from kgym.api.steps import UsedRoot
from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym.transport.artifact_storage import ArtifactMissing, sha256_of
from kgym.worker.context import StepContext

# The files of a disk in the cache; storage has all but the first.
DISK, PACKED, ABOUT = "disk", "disk.zst", "about.json"

_PACKAGES = ("kmod", "iproute2", "procps", "usr-is-merged")
_MERGED = Path("/usr/share/mmdebstrap/hooks/merged-usr")
_SIZE = "1G"
_SECONDS = 1800.0
_PACK_SECONDS = 600.0
_POLL_SECONDS = 1.0
_ARGUMENTS = (
    *("--variant=essential", "--format=tar", "--skip=output/dev"),
    f"--include={','.join(_PACKAGES)}",
    f"--hook-dir={_MERGED}",
    "--aptopt=APT::Install-Recommends false",
    "--dpkgopt=force-unsafe-io",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
)
# Argument: size; stdin: the archive; stdout: the disk. Without root, file owners need a user
# namespace, which mmdebstrap makes. The disk is made from an archive, not from mmdebstrap's root:
# that is full of mounts, which `mkfs.ext4 -d` would copy. Inode tables and journal are initialised
# here, as a guest would be busy with that for minutes.
_FORMAT = """set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$folder.disk"' EXIT
tar -C "$folder" -x
mkfs.ext4 -q -F -L root -E lazy_itable_init=0,lazy_journal_init=0 -d "$folder" \
    "$folder.disk" "$0" >&2
cat "$folder.disk"
"""
_TO_FILE = """set -e
case $1 in
root) sh -c "$2" "$3" <"$4" ;;
*) mmdebstrap --unshare-helper sh -c "$2" "$3" <"$4" ;;
esac | dd of="$5" bs=1M iflag=fullblock conv=sparse status=none
"""


def recipe() -> str:
    """Return the identity of the disk's inputs: if it changes, the disk is built again."""
    parts = [_release(), _ARGUMENTS, _SIZE, _FORMAT]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


async def make(run: StepContext, folder: Path) -> None:
    """Fetch the disk's files into `folder`, or build and store them.

    Raises InfrastructureError if neither is possible.
    """
    # Storage has it packed, so workers without mmdebstrap get the same disk.
    name = recipe()
    stored = f"memo/{name[:2]}/{name}"
    while not await _fetched(run, stored, folder):
        run.progress("root disk")
        if not await run.hold(stored):  # another worker is building it
            await asyncio.sleep(_POLL_SECONDS)
            continue
        run.log("making the root disk, once for all workers")
        system = await _bootstrapped(folder)
        await pack(folder)
        digest = await asyncio.to_thread(sha256_of, folder / DISK)
        about = UsedRoot(kind="disk", format="raw", sha256=digest, system=system)
        (folder / ABOUT).write_text(about.model_dump_json())
        for name in (PACKED, ABOUT):
            await run.storage.put(f"{stored}/{name}", folder / name)
        return


async def pack(folder: Path) -> None:
    """Pack the disk in `folder`."""
    argv: list[str | Path] = ["zstd", "-q", "-T0", "-f", folder / DISK, "-o", folder / PACKED]
    await proc.run(argv, timeout=_PACK_SECONDS)


async def unpack(folder: Path) -> None:
    """Unpack the disk that `pack` made."""
    flags = ("-d", "-q", "-f", "--sparse")
    argv: list[str | Path] = ["zstd", *flags, folder / PACKED, "-o", folder / DISK]
    await proc.run(argv, timeout=_PACK_SECONDS)


def used(folder: Path) -> UsedRoot:
    """Return the description of the disk in `folder`."""
    return UsedRoot.model_validate_json((folder / ABOUT).read_bytes())


async def _fetched(run: StepContext, stored: str, folder: Path) -> bool:
    try:
        for name in (ABOUT, PACKED):
            await run.storage.get(f"{stored}/{name}", folder / name)
        await unpack(folder)
        is_whole = await asyncio.to_thread(sha256_of, folder / DISK) == used(folder).sha256
    except ArtifactMissing:
        return False
    except (ValidationError, proc.ProgramFailed):
        is_whole = False
    whole = "fetched the root disk from storage"
    run.log(whole if is_whole else "the stored root disk is damaged")
    return is_whole


async def _bootstrapped(folder: Path) -> str:
    """Build the disk; return the name of its system."""
    path = f"{proc.environment().get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [
        tool for tool in ("mmdebstrap", "mkfs.ext4") if shutil.which(tool, path=path) is None
    ]
    if missing:
        raise InfrastructureError(
            "no_root_disk",
            f"this worker has no {' and no '.join(missing)} to make the root disk with, and none is"
            " stored that is whole: install the packages mmdebstrap and e2fsprogs on one worker",
        )
    archive = folder / "root.tar"
    release = _release()
    suite, system = release["VERSION_CODENAME"], release["PRETTY_NAME"]
    try:
        options = [f"--aptopt={line}" for line in await _apt_options()]
        mirrors = await _mirrors(suite)
        argv: list[str | Path] = ["mmdebstrap", *_ARGUMENTS, *options, suite, archive, *mirrors]
        await proc.run(argv, timeout=_SECONDS)
        who = "root" if proc.privileged() else "user"
        argv = ["sh", "-c", _TO_FILE, "sh", who, _FORMAT, _SIZE, archive, folder / DISK]
        await proc.run(argv, timeout=_PACK_SECONDS)
    except proc.ProgramFailed as error:
        message = f"the root disk cannot be made: {error.message}"
        raise InfrastructureError("no_root_disk", message) from error
    archive.unlink()
    return system


def _release() -> dict[str, str]:
    release = platform.freedesktop_os_release()
    if "VERSION_CODENAME" not in release:
        name = release.get("PRETTY_NAME", "this system")
        message = f"{name} is no Debian or Ubuntu release, of which a root disk could be made"
        raise InfrastructureError("no_root_disk", message)
    return {name: release[name] for name in ("VERSION_CODENAME", "PRETTY_NAME")}


async def _apt_options() -> list[str]:
    """Return the options with which the host's apt reaches archives: proxies, certificates."""
    words = [f"Acquire::{name}" for name in ("http", "https", "Retries")]
    form = '%F "%v";%n'
    done = await proc.run(["apt-config", "dump", "--format", form, *words], timeout=60, check=False)
    return [line for line in done.text.splitlines() if line.endswith('";') and '""' not in line]


async def _mirrors(suite: str) -> list[str]:
    """Return the archives of the suite and its updates that the host's apt knows."""
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    argv = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    done = await proc.run(argv, timeout=60, check=False)
    lines = list(dict.fromkeys(_of_suite(done.text, suite)))
    return lines if any(f" {suite} main" in line for line in lines) else []


def _of_suite(text: str, suite: str) -> Iterator[str]:
    wanted = {suite, f"{suite}-updates", f"{suite}-security"}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in wanted and words[3] == "main":
            yield line
