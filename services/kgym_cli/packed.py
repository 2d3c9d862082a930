"""Logs and reports that were kept compressed by gzip."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from kgym.errors import UserError

LARGEST = 512 << 20
"""Bytes of a log; those of syzbot have a few MiB."""
_PIECE = 1 << 16


def read(path: Path, most: int = LARGEST) -> bytes:
    """Return the file as it is without compression: of a damaged one, what can be read.

    Raises UserError `cannot_read`, also for one that comes to more than `most` bytes.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    if data[:2] != b"\x1f\x8b":
        return data
    pieces, size = [], 0
    for piece in _unpacked(data):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise UserError("cannot_read", f"{path} has more than {most} bytes, decompressed")
    return b"".join(pieces) or data


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield what can be read of a gzip file; like any log, it may be cut or damaged."""
    at = 0
    while at < len(data):
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while at < len(data) and not stream.eof:
            try:
                yield stream.decompress(data[at : at + _PIECE])
            except zlib.error:
                return
            at = min(at + _PIECE, len(data)) - len(stream.unused_data)
