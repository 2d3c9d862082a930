"""Watching a console for a crash while it is still being written."""

import re

from kgym.crash.report import crash_lines
from kgym.crash.report.families import REBOOT

_PANIC = b"Kernel panic - not syncing"
_LAST_WORDS = re.compile(
    # kernel/panic.c: panic(), and the arch notifiers that run in it
    rb"---\[ end Kernel panic|Rebooting in [0-9]+ seconds|Kernel Offset: (?:disabled|0x[0-9a-f]+)"
)


class Watch:
    """A console log that grows: says when a crash appears and when its report is complete.

    Only whole lines count: what `feed` has been given is the same to a watch however it was cut
    into pieces. All calls together take time linear in the size of the log.
    """

    def __init__(self) -> None:
        self._log = bytearray()
        self._read = 0
        self._crash_seen = False
        self._panicked = False
        self._complete = False

    def feed(self, data: bytes) -> None:
        """Add what the console printed next, cut anywhere."""
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
            # a boot is told from a reboot only by all that stands before it
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
        """Whether the panicking kernel has printed its last line: the report is complete.

        A crash that does not panic never is complete; wait for it a while after `crash_seen`.
        """
        return self._complete

    @property
    def log(self) -> bytes:
        """The whole log so far."""
        return bytes(self._log)
