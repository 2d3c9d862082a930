"""Text of records: the instrumentation's message, the tracers' lines."""

import re
from typing import NamedTuple

from kgym.trace.records import Function

# The instrumentation's format: `kgym:<file>:<function> %u\n`.
_OURS = re.compile(
    r"kgym:(?P<file>[^:\s]+):(?P<name>\w[\w.]*)(?: (?:%u|(?P<counter>\d{1,20})))?\s*$"
)
# `func <-parent` in tracefs; `function: func` from trace-cmd, which adds `<-- parent` and
# offsets if asked for.
_NAME = r"(?P<name>[A-Za-z_][\w.$]*)(?:\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?)?"
_FUNCTION = re.compile(rf"{_NAME}\s+<--?\s*\S")
_CALLED = re.compile(rf"function:\s+{_NAME}\s*$")


class Message(NamedTuple):
    """A message split from its counter, so that the text is the same for each call."""

    text: str
    counter: int


def message(text: str) -> Message | None:
    """Parse a message of the instrumentation; None for other text."""
    match = _OURS.search(text)
    if match is None:
        return None
    counter = int(match["counter"] or 0) & 0xFFFFFFFF
    return Message(f"kgym:{match['file']}:{match['name']}", counter)


def function(text: str) -> Function | None:
    """Return the function named by a format, a message or a line of the function tracer."""
    if match := _OURS.search(text):
        return Function(match["file"], match["name"])
    if match := _FUNCTION.search(text) or _CALLED.match(text):
        return Function(None, match["name"])
    return None
