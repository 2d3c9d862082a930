"""Files as people keep them: plain, compressed by gzip, xz, zstd or bzip2, or on standard input.

Whoever made them may have made them to be bombs: neither what is read nor what it comes to
is ever more than the caller takes.
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

# Bytes of a log; those of syzbot have a few MiB.
LARGEST = 512 << 20
STDIN = Path("-")
_PIECE = 1 << 16
# In one file: tools that compress in parallel write one for each 64 KiB or more.
_STREAMS = 1 << 16
# Bytes for the dictionary of an xz file; `xz -9` takes 65 MiB. zstd's own limit is 128 MiB.
_MEMORY = 256 << 20

_GZIP, _XZ, _ZSTD, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh"
_UNREAD = {
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!\x1a\x07": "RAR",
}
# Between the streams of xz.
_PADDING = re.compile(rb"\0*")
SUFFIXES = (".gz", ".xz", ".zst", ".bz2")


def name(path: Path) -> str:
    """Return the name of what the file holds: without the compression's suffix."""
    if path == STDIN:
        return "stdin"
    return path.stem if path.suffix in SUFFIXES else path.name


class _DamagedError(Exception):
    """Compressed data ends too early, or is none from some place on."""


def read(path: Path, most: int = LARGEST, *, whole: bool = True) -> bytes:
    """Return the file as it is without compression; `-` is standard input.

    A log is of use even if its file was damaged: without `whole`, what can be read of one is
    returned. Raises UserError `cannot_read` for what is damaged, for a file of which nothing
    can be read, and for one that has more than `most` bytes, or comes to more.
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
    """Return standard input, however often it is named."""
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
    """Yield what can be read of compressed data; raise _DamagedError if there is more."""
    if data.startswith(_GZIP):
        # Nothing else tells it from text that begins with these two bytes: `read` falls back.
        # Of a piece it makes at most a thousand times as much: no need to take it in parts.
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
    """Yield what the streams hold, in pieces of at most so many bytes (0: of any length)."""
    at = 0
    for _ in range(_STREAMS):
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
    """Return what the program `zstd` makes of it, in pieces, and its status.

    Of more than `most` bytes it is a little more than that, with the status 0.
    """
    import tempfile  # noqa: PLC0415

    from kgym.host import proc  # noqa: PLC0415

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
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
