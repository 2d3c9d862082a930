"""Console lines: their positions, who printed them, and their text without the prefix.

A console line may begin, in this order, with: a note that printk dropped messages, leftovers on the
terminal (a prompt), a syslog level `<4>`, a time stamp `[  12.345678]`
(CONFIG_PRINTK_TIME) and the task or CPU that printed it, `[ T123]` or `[ C0]`
(CONFIG_PRINTK_CALLER); see kernel/printk/printk.c, print_prefix(). What loggers print before that
is removed first (`line_prefixes.py`).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from kgym.crash.report.line_prefixes import NO_PREFIXES, Prefixes

# Context of a line without a time stamp.
NO_PREFIX = ""
# Context of a line whose time stamp does not name a task or CPU.
CONSOLE = "console"
# Bytes of a line that are read: printk writes up to 1 KiB (LOG_LINE_MAX).
MAX_LINE = 2048

_PREFIX = re.compile(
    r"(?:\*\* [0-9]+ printk messages dropped \*\* ?)?(?:.{0,80}?(?: login:|[#$]) )?(?:<[0-9]+>)?"
    r"(?P<early>(?:\[ *[CT][0-9]+\] ?)*)\[ *[0-9]+\.[0-9]+\](?P<late>(?: ?\[ *[CT][0-9]+\])*) "
)
# dmesg and the journal indent the further lines of a message by at least the time stamp's width.
_FURTHER = re.compile(r" {13,}(?=\S)")
# A console that another context took over prints the line again (kernel/printk/nbcon.c).
_REPLAY = "** replaying previous printk message **"
_UNCERTAIN = re.compile(r"(?:^| )\? ")
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
        return self.context.startswith("[C")


def read(text: str, offset: int = 0, prefixes: Prefixes = NO_PREFIXES) -> Iterator[Line]:
    """Yield the lines of `text` (one character per byte), which is at `offset` in the log.

    Lines that were cut off and printed again are left out.
    """
    previous: Line | None = None
    replays = False
    for line in _lines(text, offset, prefixes):
        if line.text.endswith(_REPLAY):
            replays = True
            continue
        if previous and not (replays and line.text.startswith(previous.text)):
            yield previous
        replays = False
        if previous and line.context == NO_PREFIX and _FURTHER.match(line.text):
            previous = line._replace(context=previous.context, text=line.text.lstrip())
        else:
            previous = line
    if previous:
        yield previous


def _lines(text: str, offset: int, prefixes: Prefixes) -> Iterator[Line]:
    start = 0
    while start < len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        raw = text[start : min(stop, start + MAX_LINE)].rstrip("\r")
        yield _line(prefixes.without(raw), offset + start, offset + stop)
        start = stop + 1


def _line(raw: str, start: int, end: int) -> Line:
    prefix = _PREFIX.match(raw)
    if prefix is None:
        return Line(start, end, NO_PREFIX, raw, uncertain=False)
    text = raw[prefix.end() :]
    context = (prefix["early"] + prefix["late"]).replace(" ", "") or CONSOLE
    # The frame after <EOI> is where the interrupt hit: worth keeping even as a "?" frame.
    if "<EOI>" in text:
        return Line(start, end, context, text, uncertain=False)
    uncertain = _UNCERTAIN.search(text) is not None or text.endswith(_UNRELIABLE)
    return Line(start, end, context, text.removesuffix(_UNRELIABLE), uncertain)
