"""Dumps and traces as they are kept: compressed."""

from pathlib import Path

from kgym import proc
from kgym.errors import UserError

SECONDS = 300.0
LARGEST = 64 << 30
"""Bytes of what is decompressed."""
# zstd (RFC 8878, section 3.1.1) and gzip (RFC 1952, section 2.3.1).
_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")


async def unpacked(path: Path, folder: Path) -> Path:
    """Return the file, decompressed into `folder` if it is compressed by zstd or gzip.

    Raises UserError `cannot_read` where it is damaged, or not to be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    if not start.startswith(_MAGIC):
        return path
    proc.require("zstd")
    plain = folder / f"plain-{path.stem}"
    try:
        await proc.run(
            ["prlimit", f"--fsize={LARGEST}", "--", "zstd", "-dqf", "-o", plain, "--", path],
            timeout=SECONDS,
        )
    except proc.ProgramFailed as error:
        raise UserError("cannot_read", f"{path} cannot be decompressed: {error.message}") from error
    return plain
