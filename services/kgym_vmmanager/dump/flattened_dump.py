"""The stream in which makedumpfile sends a dump whose parts it writes in any order. Pure.

`makedumpfile -F`, format from makedumpfile's `makedumpfile.h`: a page with the
signature, then parts, each with its place and size (big-endian), to a last one of -1.
"""

import struct
from collections.abc import Iterator

SIGNATURE = b"makedumpfile"
_START = 4096
_PART = struct.Struct(">qq")


class Flattened:
    """What came so far; `complete` once the last part was seen."""

    def __init__(self, most: int) -> None:
        """Refuse what would lie beyond `most` bytes, or adds up to more: guests may lie."""
        self.complete = False
        self._most = self._left = most
        self._rest = b""
        self._started = False
        self._place = self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield bytes with their places in the dump; raises ValueError for a bad stream."""
        self._rest += data
        while not self.complete:
            if self._size:
                piece = self._rest[: self._size]
                if not piece:
                    return
                yield self._place, piece
                self._rest = self._rest[len(piece) :]
                self._place += len(piece)
                self._size -= len(piece)
            elif not self._started:
                if len(self._rest) < _START:
                    return
                if not self._rest.startswith(SIGNATURE):
                    raise ValueError("it is no stream of makedumpfile")
                self._started = True
                self._rest = self._rest[_START:]
            elif len(self._rest) < _PART.size:
                return
            else:
                self._begin(*_PART.unpack_from(self._rest))
                self._rest = self._rest[_PART.size :]

    def _begin(self, place: int, size: int) -> None:
        if place == size == -1:
            self.complete = True
            return
        self._left -= size
        if place < 0 or size < 0 or place + size > self._most or self._left < 0:
            raise ValueError(f"it has a part of {size} bytes at {place}")
        self._place, self._size = place, size
