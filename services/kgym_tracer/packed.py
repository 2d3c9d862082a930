"""Dumps and traces as they are kept: compressed."""

from pathlib import Path

from kgym import proc

SECONDS = 300.0
LARGEST = 64 << 30
"""Bytes of what is decompressed."""
# zstd (RFC 8878, section 3.1.1) and gzip (RFC 1952, section 2.3.1).
_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")


async def unpacked(path: Path, folder: Path) -> Path:
    """Return the file, decompressed into `folder` if it is compressed by zstd or gzip.

    Raises OSError where it cannot be read, and ProgramFailed where it is damaged or the disk
    is full: whose fault that is, the caller knows.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if not start.startswith(_MAGIC):
        return path
    proc.require("zstd")
    plain = folder / f"plain-{path.stem}"
    await proc.run(
        ["prlimit", f"--fsize={LARGEST}", "--", "zstd", "-dqf", "-o", plain, "--", path],
        timeout=SECONDS,
    )
    return plain
