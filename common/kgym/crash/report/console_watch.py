"""Detection of crashes on a console that is still being written."""

import re

from kgym.crash.report import crash_lines
from kgym.crash.report.families import REBOOT

_PANIC = b"Kernel panic - not syncing"
_LAST_WORDS = re.compile(
    # kernel/panic.c: panic(), and the arch notifiers that run in it
    rb"---\[ end Kernel panic|Rebooting in [0-9]+ seconds|Kernel Offset: (?:disabled|0x[0-9a-f]+)"
)


class Watch:
    """A growing console log: detects a crash, and the end of its report.

    Only whole lines count, so the result does not depend on how the log was split into pieces. All
    calls together take time linear in the size of the log.
    """

    def __init__(self) -> None:
        self._log = bytearray()
        self._read = 0
        self._crash_seen = False
        self._panicked = False
        self._complete = False

    def feed(self, data: bytes) -> None:
        """Append the next piece of the console's output, cut anywhere."""
        searched = len(self._log)
        self._log += data
        end = self._log.rfind(b"\n", searched) + 1
        if end:
            lines = bytes(self._log[self._read : end])
            self._read = end
            self._look_at(lines)

    def _look_at(self, lines: bytes) -> None:
        if self._complete:
            return
        start = 0
        if not self._crash_seen:
            # only the whole log before it tells a first boot from a reboot
            positions = (at for at, family in crash_lines.find(lines) if family is not REBOOT)
            start = next(positions, -1)
            if start < 0:
                return
            self._crash_seen = True
        panic = start if self._panicked else lines.find(_PANIC, start)
        if panic < 0:
            return
        self._panicked = True
        self._complete = _LAST_WORDS.search(lines, panic) is not None

    @property
    def crash_seen(self) -> bool:
        """Whether a line has announced a crash."""
        return self._crash_seen

    @property
    def panicked(self) -> bool:
        """Whether the kernel has panicked in or after the crash."""
        return self._panicked

    @property
    def complete(self) -> bool:
        """Whether the panicking kernel has printed its last line, so that the report is complete.

        A crash without a panic is never complete; wait a while after `crash_seen`.
        """
        return self._complete

    @property
    def log(self) -> bytes:
        """The whole log so far."""
        return bytes(self._log)
