"""Reading of input files: plain, compressed by gzip, xz, zstd or bzip2, or standard input.

Both the read and the decompressed size are bounded, as files may be decompression bombs. A
compressed file that cannot be read is an error, never "no crash".
"""

import bz2
import functools
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kgym.errors import UserError

# Most bytes of a log; syzbot's have a few MiB.
LARGEST = 512 << 20
STDIN = Path("-")
_PIECE = 1 << 16
# Most streams in one file: parallel compressors write one per 64 KiB or more.
_STREAMS = 1 << 16
# Most memory for an xz dictionary; `xz -9` needs 65 MiB. The program zstd limits itself to 128 MiB.
_MEMORY = 256 << 20

_GZIP, _XZ, _ZSTD, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh"
_UNREAD = {
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!\x1a\x07": "RAR",
}
# Padding between xz streams (xz file format 1.2, section 2.2).
_PADDING = re.compile(rb"\0*")
SUFFIXES = (".gz", ".xz", ".zst", ".bz2")


def name(path: Path) -> str:
    """Return the file's name without the suffix of its compression."""
    if path == STDIN:
        return "stdin"
    return path.stem if path.suffix in SUFFIXES else path.name


class _DamagedError(Exception):
    """Compressed data is cut off or corrupt."""


def read(path: Path, most: int = LARGEST, *, whole: bool = True) -> bytes:
    """Return the decompressed content; `-` is standard input.

    Without `whole`, the readable beginning of a damaged file is returned: half a log may hold the
    crash. Raises UserError `cannot_read` if the file is damaged, entirely unreadable, or larger
    than `most` bytes, compressed or not.
    """
    data = _stdin(most) if path == STDIN else _file(path, most)
    for magic, kind in _UNREAD.items():
        if data.startswith(magic):
            raise UserError("cannot_read", f"{path} is compressed by {kind}; decompress it first")
    pieces, size = [], 0
    try:
        for piece in _unpacked(data, most):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise UserError("cannot_read", f"{path} has more than {most} bytes, decompressed")
    except _DamagedError as error:
        if whole and (size or not data.startswith(_GZIP)):
            raise UserError("cannot_read", f"{path} is damaged: {error}") from error
    if not size and data.startswith((_XZ, _ZSTD, _BZIP2)):
        raise UserError("cannot_read", f"{path} is compressed, but nothing of it can be read")
    return b"".join(pieces) or data


@functools.cache
def _stdin(most: int) -> bytes:
    """Return standard input. Cached, as a command line may name it twice."""
    if sys.stdin is None:
        raise UserError("cannot_read", "-: there is no standard input")
    return _bounded(sys.stdin.buffer.read(most + 1), STDIN, most)


def _file(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(most + 1), path, most)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError("cannot_read", f"{path}: {reason or error}") from error


def _bounded(data: bytes, path: Path, most: int) -> bytes:
    if len(data) > most:
        raise UserError("cannot_read", f"{path} has more than {most} bytes")
    return data


def _unpacked(data: bytes, most: int) -> Iterator[bytes]:
    """Yield readable data; raise _DamagedError if the rest is unreadable."""
    if data.startswith(_GZIP):
        # Plain text may begin with gzip's two bytes, so `read` falls back to the raw data.
        # Deflate expands at most 1,032 times, so a piece needs no limit of its own.
        yield from _streams(data, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), 0)
    elif data.startswith(_XZ):
        yield from _streams(data, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY), _PIECE)
    elif data.startswith(_BZIP2):
        yield from _streams(data, bz2.BZ2Decompressor, _PIECE)
    elif data.startswith(_ZSTD):
        import asyncio  # noqa: PLC0415 - commands that read no such file need neither

        pieces, status = asyncio.run(_by_zstd(data, most))
        yield from pieces
        if status:
            raise _DamagedError("zstd cannot decompress all of it")


def _streams(data: bytes, new: Callable[[], Any], most: int) -> Iterator[bytes]:
    """Yield the streams' content in pieces of at most `most` bytes (0: unlimited)."""
    at = 0
    for _ in range(_STREAMS):
        # Concatenated streams are one file (RFC 1952, section 2.2), as pigz, pxz and log rotation
        # write.
        stream = new()
        while at < len(data) and not stream.eof:
            piece: bytes | None = data[at : at + _PIECE]
            at = min(at + _PIECE, len(data))
            while piece is not None:
                try:
                    yield stream.decompress(piece, most)
                except (zlib.error, lzma.LZMAError, OSError) as error:
                    raise _DamagedError(str(error)) from error
                piece = None if stream.eof or not most or stream.needs_input else b""
        if not stream.eof:
            raise _DamagedError("it ends too early")
        if at >= len(data) and not stream.unused_data:
            return
        at -= len(stream.unused_data)
        padding = _PADDING.match(data, at)
        at = padding.end() if padding else at
        if at >= len(data):
            return
    raise _DamagedError(f"it has more than {_STREAMS} streams")


async def _by_zstd(data: bytes, most: int) -> tuple[list[bytes], int]:
    """Return the output of the program `zstd`, in pieces, and its exit status.

    Output beyond `most` bytes is cut off a little later, with status 0.
    """
    import tempfile  # noqa: PLC0415

    from kgym.host import proc  # noqa: PLC0415

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        # Python 3.11 has no zstd; the program is needed by artifacts anyway.
        process = await proc.spawn(["zstd", "-dcqq"], stdin=file)
        pieces, size = [], 0
        try:
            assert process.stdout is not None
            while piece := await process.stdout.read(1 << 20):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    return pieces, 0
            return pieces, await process.wait()
        finally:
            await proc.kill(process)
