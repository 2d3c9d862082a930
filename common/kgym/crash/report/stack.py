"""The stack traces of a report: of the crash, of the object's allocation, and of its release."""

import re
from collections.abc import Sequence

from kgym.crash.report.crash_report import Frame
from kgym.crash.report.frames import parse_crashed, parse_frame

_TRACE = re.compile(r"Call [Tt]race:|Backtrace:|backtrace(?: \(crc [0-9a-f]+\))?:")
_OWN_TRACE = "stack backtrace:"
_ALLOCATED = re.compile(
    r"Allocated(?: by task [0-9]+.*)?:|allocated by task [0-9]+|was created at:"
)
_FREED = re.compile(r"Freed(?: by task [0-9]+.*)?:|freed by task [0-9]+")
_END = re.compile(
    r"\s*$|Modules linked in|---\[ end|={20}|The buggy address|Memory state|R?IP: 0033:"
    r"|unreferenced object|Kernel panic|INFO: |Exception stack"
)


def crash_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the crashing stack, beginning with the instruction in the register dump, if any."""
    start = _start(lines)
    if start is None:
        return _read(lines, 1)
    crashed = next((frame for line in lines[1:start] if (frame := parse_crashed(line))), None)
    frames = _read(lines, start + 1)
    if crashed and (not frames or frames[0] != crashed):
        return (crashed, *frames)
    return frames


def alloc_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the allocation stack of the memory at fault; empty if the report has none."""
    return _after(lines, _ALLOCATED)


def free_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the free stack of the memory at fault; empty if the report has none."""
    return _after(lines, _FREED)


def _start(lines: Sequence[str]) -> int | None:
    """Return where the stack begins: lockdep prints other tasks' traces before the report's own."""
    own = next((i for i, line in enumerate(lines) if _OWN_TRACE in line), 0)
    traces = (i for i, line in enumerate(lines) if i > own and _TRACE.search(line))
    return next(traces, None)


def _after(lines: Sequence[str], heading: re.Pattern[str]) -> tuple[Frame, ...]:
    for number, line in enumerate(lines):
        if heading.search(line):
            return _read(lines, number + 1)
    return ()


def _read(lines: Sequence[str], start: int) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    for line in lines[start:]:
        frame = parse_frame(line)
        if frame:
            frames.append(frame)
        elif frames and (_END.match(line) or _TRACE.search(line)):
            break
    return tuple(frames)
