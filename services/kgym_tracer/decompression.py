"""Decompression of stored dumps and traces. They may be decompression bombs made by a guest."""

import signal
from dataclasses import replace
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import SandboxLimits

SECONDS = 300.0
# Bytes after decompression, and the largest file that the sandbox may write.
LARGEST = 16 << 30
_MEMORY = 1 << 30
# zstd (RFC 8878, section 3.1.1) and gzip (RFC 1952, section 2.3.1).
_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")


async def unpacked(path: Path, folder: Path, most: int = LARGEST) -> Path:
    """Decompress a zstd or gzip file below `folder`; return the path of the plain file.

    Raises OSError if the file is unreadable, ProgramFailed if it is damaged or the disk is full
    (the caller knows whose fault that is), and UserError `dump_too_large` beyond `most` bytes.
    """
    # A damaged file is an error, never "no crash": callers must not read half a log.
    with path.open("rb") as file:
        start = file.read(4)
    if not start.startswith(_MAGIC):
        return path
    proc.require("zstd")
    out = prepare(folder / "unpacked")
    plain = out / f"plain-{path.stem}"
    usual = SandboxLimits.of_host()
    limits = replace(usual, memory=min(_MEMORY, usual.memory), disk=most, files=10)
    argv = ["zstd", "-dqf", "-o", f"/out/{plain.name}"]
    try:
        done = await Sandbox(writable={"/out": out}, limits=limits).run(
            argv, stdin=path, timeout=SECONDS, check=False
        )
    except UserError as error:
        raise _too_large(path, most) from error
    # zstd writes runs of zeros as holes. They use no disk, so only the file's size shows them.
    if done.returncode == 128 + signal.SIGXFSZ or (plain.exists() and plain.lstat().st_size > most):
        raise _too_large(path, most)
    done.check()
    return plain


def _too_large(path: Path, most: int) -> UserError:
    return UserError("dump_too_large", f"{path.name} decompresses to more than {most} bytes")
