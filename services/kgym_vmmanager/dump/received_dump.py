"""What a capture kernel sends, on its way into a file: filtered by makedumpfile, or all of it."""

from pathlib import Path
from typing import IO

from kgym_vmmanager.dump.flattened_dump import Flattened
from kgym_vmmanager.guest.paths import MAKEDUMPFILE


class Received:
    """A file that grows by what `command` prints in the guest, to `most` bytes at most."""

    command = "gzip -1 -c /proc/vmcore"
    ending = "elf.gz"
    complete = True
    """Whether the end was seen; of packed memory, the command's status tells."""

    def __init__(self, stem: Path, most: int) -> None:
        self.path = Path(f"{stem}.{self.ending}")
        self._most = most
        self._file: IO[bytes] = self.path.open("wb")

    def feed(self, data: bytes) -> None:
        """Add what came; raises ValueError for what cannot be a dump."""
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
    """The same, less pages of zeros, of caches, of programs, and free ones (makedumpfile -d)."""

    command = f"{MAKEDUMPFILE} -F -l -d 31 --message-level 4 /proc/vmcore"
    ending = "kdump"

    def __init__(self, stem: Path, most: int) -> None:
        super().__init__(stem, most)
        self._parts = Flattened(most)

    def feed(self, data: bytes) -> None:
        """Write each piece at the place in the file that it names."""
        for place, piece in self._parts.feed(data):
            self._file.seek(place)
            self._file.write(piece)
        self.complete = self._parts.complete
