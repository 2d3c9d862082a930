"""A stream of text out of a guest: kept in a file, watched for crash reports."""

import time
from pathlib import Path
from typing import Protocol

from kgym.crash.report import Watch
from kgym.errors import InfrastructureError
from kgym.host.quoted_words import quoted

# Bytes that the file keeps: the beginning of a longer stream.
FILE_BYTES = 32 << 20
# After so much without a crash, the watch starts anew (it keeps what it is fed).
WATCH_BYTES = 32 << 20
# The last lines of a stream without words.
NOTHING = "nothing"
_TAIL_BYTES = 2000
# Characters of a line in a message, on the average.
_LINE = 200


class Source(Protocol):
    """Where a stream comes from that is behind what the guest says: a `Vm`."""

    @property
    def console_until(self) -> float:
        """The moment (monotonic clock) up to which it has been read."""

    @property
    def console_gap(self) -> str:
        """What of it was lost, in words."""

    async def catch_up(self) -> None:
        """Return once all has been read that was said by now."""


class Console:
    """The console of a guest, or the output of a program in it.

    The console's `source` is known once its VM runs.
    """

    def __init__(self, path: Path) -> None:
        self.watch = Watch()
        self.last = time.monotonic()
        self.error: InfrastructureError | None = None
        self.size = 0
        self.source: Source | None = None
        self._tail = b""
        self._fed = 0
        self._path = path
        self._file = path.open("wb")

    def feed(self, data: bytes) -> None:
        """Add what came; a file that cannot be written is remembered as `error`."""
        if not data:
            return
        self.last = time.monotonic()
        if self._fed > WATCH_BYTES and not self.watch.crash_seen:
            self.watch_anew()
        self._fed += len(data)
        self.watch.feed(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self.size < FILE_BYTES:
            self._write(data)
        self.size += len(data)

    @property
    def until(self) -> float:
        """The moment (monotonic clock) up to which it has been read."""
        return self.source.console_until if self.source else time.monotonic()

    @property
    def gap(self) -> str:
        """What of it was lost, in words."""
        return self.source.console_gap if self.source else ""

    async def catch_up(self) -> None:
        """Return once all has been read that was said by now."""
        if self.source is not None:
            await self.source.catch_up()

    def watch_anew(self, judged: bytes | None = None) -> None:
        """Forget what was seen so far: the whole lines of `judged`, its beginning, or all of it."""
        log = self.watch.log
        rest = b"" if judged is None else log[judged.rfind(b"\n") + 1 :]
        self.watch = Watch()
        self.watch.feed(rest)
        self._fed = len(rest)

    def has_seen(self, words: bytes) -> bool:
        """Return whether the watched part holds the words."""
        return words in self.watch.log

    def line_after(self, words: bytes) -> str | None:
        """Return the rest of the line in the watched part with the words, once it is whole.

        It is for a message: the guest's words, quoted.
        """
        _, match, rest = self.watch.log.partition(words)
        line, whole, _ = rest.partition(b"\n")
        return quoted(line) if match and whole else None

    def last_lines(self, count: int = 3) -> str:
        """Return the last lines, joined and quoted, for a message; NOTHING if there are none."""
        lines = [quoted(line) for line in self._tail.splitlines()]
        words = " / ".join([line for line in lines if line][-count:])
        return quoted(words, count * _LINE) or NOTHING

    def close(self) -> Path:
        """Close the file and return it."""
        self._file.close()
        return self._path

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self.error = InfrastructureError(
                "disk_full", f"cannot write {self._path.name}: {error}; free some space"
            )
