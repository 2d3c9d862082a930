"""Unpack archives of kernel sources in the sandbox, and check the files before use."""

import asyncio
import os
import stat
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox
from kgym_builder.kernel_source.source_limits import SourceLimits

# The archive comes by stdin, as the sandbox's user may not be able to reach its folder. From stdin,
# tar cannot detect the compression.
_COMPRESSIONS = {
    b"\xfd7zXZ": "--xz",
    b"\x1f\x8b": "--gzip",
    b"\x28\xb5\x2f\xfd": "--zstd",
    b"BZh": "--bzip2",
}
# Bytes of a file's path on this host. Linux allows 4,095, but the tree is used at other paths, too.
_LONGEST = 3000


# A file in every kernel's top folder, and the name of a source that has it.
KERNEL = ("Makefile", "kernel")


async def unpack(
    archive: Path, tree: Path, bounds: SourceLimits, proof: tuple[str, str] = KERNEL
) -> None:
    """Unpack a tar archive with one top folder into the prepared folder `tree`.

    `proof` is as `KERNEL`.

    Raises UserError `source_unreadable`, `source_too_large`.
    """
    with await asyncio.to_thread(archive.open, "rb") as file:
        start = file.read(8)
    flags = [flag for magic, flag in _COMPRESSIONS.items() if start.startswith(magic)]
    argv = ["tar", "-x", *flags, "-C", "/tree", "--strip-components=1", "--no-same-owner"]
    box = Sandbox(writable={"/tree": tree}, limits=bounds.unpacking())
    try:
        await box.run(argv, stdin=archive, timeout=bounds.unpack_seconds)
    except proc.ProgramTimedOut as error:
        raise UserError(
            "source_too_large", f"it does not unpack within {bounds.unpack_seconds:g} s"
        ) from error
    except proc.ProgramFailed as error:
        raise UserError("source_unreadable", f"cannot unpack it: {error.message}") from error
    except UserError as error:
        raise too_large(error) from error
    await asyncio.to_thread(_look_over, tree, bounds, *proof)


def too_large(error: UserError) -> UserError:
    """Return the error of a source that exceeds a sandbox's limits."""
    return UserError("source_too_large", f"the source is too large: {error.message}")


def _look_over(tree: Path, bounds: SourceLimits, file: str, what: str) -> None:
    """Refuse a tree without the file, or with files that later readers could not handle."""
    proof = tree / file
    # Not `is_file`: a link would be followed on this host.
    if not os.path.lexists(proof) or not stat.S_ISREG(proof.lstat().st_mode):
        raise UserError("source_unreadable", f"it holds no {what}: no {file} on top")
    size = files = 0
    rest = [os.fspath(tree)]
    try:
        while rest:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    kind = entry.stat(follow_symlinks=False)
                    name = os.path.relpath(entry.path, tree)
                    if stat.S_ISDIR(kind.st_mode):
                        rest.append(entry.path)
                    elif not (stat.S_ISREG(kind.st_mode) or stat.S_ISLNK(kind.st_mode)):
                        raise UserError("source_unreadable", f"{name!r} is no file")
                    if len(os.fsencode(entry.path)) > _LONGEST:
                        raise UserError("source_unreadable", f"{name[:100]!r}…: too long a path")
                    size += kind.st_size
                    files += 1
    except OSError as error:
        raise UserError("source_unreadable", f"cannot be read: {error.strerror}") from error
    if files > bounds.files:
        raise UserError("source_too_large", f"it has {files} files, {bounds.files} allowed")
    if size > bounds.tree:  # counts holes of sparse files, as a copy would fill them
        raise UserError("source_too_large", f"its files have {size} bytes, {bounds.tree} allowed")
