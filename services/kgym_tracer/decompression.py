"""Dumps and traces as they are kept: compressed. A guest may have made them to be bombs."""

import signal
from dataclasses import replace
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import SandboxLimits

SECONDS = 300.0
# Bytes of what is decompressed, which is also the largest file that a sandbox may write.
LARGEST = 16 << 30
_MEMORY = 1 << 30
# zstd (RFC 8878, section 3.1.1) and gzip (RFC 1952, section 2.3.1).
_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")


async def unpacked(path: Path, folder: Path, most: int = LARGEST) -> Path:
    """Return the file, decompressed below `folder` if it is compressed by zstd or gzip.

    Raises OSError where it cannot be read, ProgramFailed where it is damaged or the disk is
    full: whose fault that is, the caller knows. Raises UserError `dump_too_large` for one that
    comes to more than `most` bytes: it is decompressed in a sandbox, which is watched.
    """
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
    # Pages of zeros take no space, and are counted here.
    if done.returncode == 128 + signal.SIGXFSZ or (plain.exists() and plain.lstat().st_size > most):
        raise _too_large(path, most)
    done.check()
    return plain


def _too_large(path: Path, most: int) -> UserError:
    return UserError("dump_too_large", f"{path.name} has more than {most} bytes, decompressed")
