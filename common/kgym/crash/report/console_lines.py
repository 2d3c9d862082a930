"""Console lines: their positions, who printed them, and their text without the prefix.

A console line may begin, in this order, with: a note that printk dropped messages, leftovers on the
terminal (a login prompt), a syslog level `<4>`, a time stamp `[  12.345678]`
(CONFIG_PRINTK_TIME) and the task or CPU that printed it, `[ T123]` or `[ C0]`
(CONFIG_PRINTK_CALLER); see kernel/printk/printk.c, print_prefix().
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Context of a line without a time stamp.
NO_PREFIX = ""
# Context of a line whose time stamp does not name a task or CPU.
CONSOLE = "console"
# Bytes of a line that are read: printk writes up to 1 KiB (LOG_LINE_MAX).
MAX_LINE = 2048

_PREFIX = re.compile(
    r"(?:\*\* [0-9]+ printk messages dropped \*\* ?)?(?:.{0,80}? login: )?(?:<[0-9]+>)?"
    r"\[ *[0-9]+\.[0-9]+\](?P<caller>\[ *[CT][0-9]+\])? "
)
_UNCERTAIN = " ? "
_UNRELIABLE = " (unreliable)"


class Line(NamedTuple):
    """One line of the log; `start` and `end` leave out the newline, `text` the prefix."""

    start: int
    end: int
    context: str
    text: str
    uncertain: bool

    @property
    def from_cpu(self) -> bool:
        """Whether an interrupt handler printed the line ("[ C0]")."""
        return self.context.lstrip("[ ").startswith("C")


def has_caller(context: str) -> bool:
    """Return whether `context` names a task or a CPU."""
    return context.startswith("[")


def read(text: str, offset: int = 0) -> Iterator[Line]:
    """Yield the lines of `text` (one character per byte), which is at `offset` in the log."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        yield _line(text[start:stop], offset + start)
        start = stop + 1


def _line(raw: str, start: int) -> Line:
    end = start + len(raw)
    raw = raw[:MAX_LINE].rstrip("\r")
    prefix = _PREFIX.match(raw)
    if prefix is None:
        return Line(start, end, NO_PREFIX, raw, uncertain=False)
    text = raw[prefix.end() :]
    context = prefix["caller"] or CONSOLE
    # The frame after <EOI> is where the interrupt hit: worth keeping even as a "?" frame.
    if "<EOI>" not in text:
        if _UNCERTAIN in text:
            return Line(start, end, context, text, uncertain=True)
        if text.endswith(_UNRELIABLE):
            return Line(start, end, context, text[: -len(_UNRELIABLE)], uncertain=True)
    return Line(start, end, context, text, uncertain=False)
