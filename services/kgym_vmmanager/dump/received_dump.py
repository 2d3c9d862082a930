"""The dump that a capture kernel sends: filtered by makedumpfile, or all of the memory."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kgym_vmmanager.guest.paths import MAKEDUMPFILE

# The stream of `makedumpfile -F` (makedumpfile.h): a page with the signature, then parts in any
# order, each after its place and size (big-endian), up to a last part of -1.
SIGNATURE = b"makedumpfile"
_START = 4096
_PART = struct.Struct(">qq")


class Received:
    """A file for the output of `command` in the guest, of at most `most` bytes."""

    command = "gzip -1 -c /proc/vmcore"
    ending = "elf.gz"
    complete = True
    """Whether the end was seen; for packed memory, the command's status decides."""

    def __init__(self, stem: Path, most: int) -> None:
        self.path = Path(f"{stem}.{self.ending}")
        self._most = most
        self._file: IO[bytes] = self.path.open("wb")

    def feed(self, data: bytes) -> None:
        """Write the next bytes; raises ValueError for a stream that is no dump."""
        if self._file.tell() + len(data) > self._most:
            raise ValueError(f"it has more than {self._most} bytes")
        self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def discard(self) -> None:
        """Remove the incomplete file."""
        self.path.unlink()


class Filtered(Received):
    """A dump without free pages, pages of zeros, of caches and of programs."""

    # -d 31 leaves all of these out; -l compresses with LZO, which costs a slow CPU least.

    command = f"{MAKEDUMPFILE} -F -l -d 31 --message-level 4 /proc/vmcore"
    ending = "kdump"

    def __init__(self, stem: Path, most: int) -> None:
        super().__init__(stem, most)
        self._parts = Flattened(most)

    def feed(self, data: bytes) -> None:
        """Write each part at its place in the file."""
        for place, piece in self._parts.feed(data):
            self._file.seek(place)
            self._file.write(piece)
        self.complete = self._parts.complete


class Flattened:
    """Parser of makedumpfile's stream; `complete` once the last part was seen. Pure."""

    def __init__(self, most: int) -> None:
        """Refuse parts beyond `most` bytes, or more bytes in all."""
        # The guest is hostile: a part at 8 EiB, or one place written for ever, would fill the disk.
        self.complete = False
        self._most = self._left = most
        self._rest = b""
        self._started = False
        self._place = self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield pieces with their places in the dump; raises ValueError for a malformed stream."""
        # Cut once per call: a guest can send thousands of parts in each kilobyte.
        data, at = self._rest + data, 0
        while not self.complete:
            if self._size:
                piece = data[at : at + self._size]
                if not piece:
                    break
                yield self._place, piece
                at += len(piece)
                self._place += len(piece)
                self._size -= len(piece)
            elif not self._started:
                if len(data) < _START:
                    break
                if not data.startswith(SIGNATURE):
                    raise ValueError("it is not a stream of makedumpfile")
                self._started = True
                at = _START
            elif len(data) - at < _PART.size:
                break
            else:
                self._begin(*_PART.unpack_from(data, at))
                at += _PART.size
        self._rest = data[at:]

    def _begin(self, place: int, size: int) -> None:
        if place == size == -1:
            self.complete = True
            return
        self._left -= size
        if place < 0 or size < 0 or place + size > self._most or self._left < 0:
            raise ValueError(f"it has a part of {size} bytes at {place}")
        self._place, self._size = place, size
