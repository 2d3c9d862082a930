"""What records say in words: the message of the instrumentation, the lines of the tracers."""

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
    """A message without its counter, which makes it the same for each call of a function."""

    text: str
    counter: int


def message(text: str) -> Message | None:
    """Split what the instrumentation wrote; None where it is something else."""
    match = _OURS.search(text)
    if match is None:
        return None
    counter = int(match["counter"] or 0) & 0xFFFFFFFF
    return Message(f"kgym:{match['file']}:{match['name']}", counter)


def function(text: str) -> Function | None:
    """Return the function that a format, a message or a line of the function tracer names."""
    if match := _OURS.search(text):
        return Function(match["file"], match["name"])
    if match := _FUNCTION.search(text) or _CALLED.match(text):
        return Function(None, match["name"])
    return None
