"""A stream of text out of a guest: kept in a file, watched for crash reports."""

import time
from pathlib import Path

from kgym.crash.report import Watch
from kgym.errors import InfrastructureError
from kgym.host.quoted_words import quoted
from kgym_vmmanager.vm.provider import Vm

# Bytes of the stream that the file keeps, from its beginning: a guest may print any amount.
FILE_BYTES = 32 << 20
# After this many bytes without a crash the watch starts over: it keeps all that it was fed.
WATCH_BYTES = 32 << 20
# Stands for the last lines of an empty stream.
NOTHING = "nothing"
_TAIL_BYTES = 2000
# Characters per line of a message, on average.
_LINE = 200


class Console:
    """The console of a guest, or the output of a program in it.

    `source` is set once the VM of a console runs.
    """

    # A console in a cloud is polled. Silence counts only up to the moment to which it was read, and
    # before a verdict rests on silence, it is read to its end.

    def __init__(self, path: Path) -> None:
        self.watch = Watch()
        self.last = time.monotonic()
        self.error: InfrastructureError | None = None
        self.size = 0
        self.source: Vm | None = None
        self._tail = b""
        self._fed = 0
        self._path = path
        self._file = path.open("wb")

    def feed(self, data: bytes) -> None:
        """Add the next bytes; if the file cannot be written, set `error`."""
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
        """The moment (monotonic clock) up to which the console has been read."""
        return self.source.console_until if self.source else time.monotonic()

    @property
    def gap(self) -> str:
        """Which part of it was lost, in words; empty if none was."""
        return self.source.console_gap if self.source else ""

    async def catch_up(self) -> None:
        """Return once everything that was printed until now has been read."""
        if self.source is not None:
            await self.source.catch_up()

    def watch_anew(self, judged: bytes | None = None) -> None:
        """Forget the log so far, or only the whole lines of `judged`, which is its beginning."""
        log = self.watch.log
        rest = b"" if judged is None else log[judged.rfind(b"\n") + 1 :]
        self.watch = Watch()
        self.watch.feed(rest)
        self._fed = len(rest)

    def has_seen(self, words: bytes) -> bool:
        """Return whether the watched part contains `words`."""
        return words in self.watch.log

    def line_after(self, words: bytes) -> str | None:
        """Return the rest of the line after `words`, once the line is complete.

        The guest's words are quoted, for a message.
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
