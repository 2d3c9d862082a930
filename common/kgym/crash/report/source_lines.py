"""Source lines for a report's frames: what to look up, and how to insert the answers.

Pure; `kgym.crash.symbolize` does the lookup. The text is formatted as by syz-symbolize:
` file:line` after the frame, and above it a line marked `[inline]` for each inlined function.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kgym.crash.report.blamed_file import guilty_file
from kgym.crash.report.crash_report import CrashReport, Frame
from kgym.crash.report.frames import parse_crashed

# Functions of modules are in their own object files, and some lines already have their source.
_CALL = re.compile(
    r"(?<=[ \t(:])(?P<function>[A-Za-z_][\w.$]*)\+0x(?P<offset>[0-9a-f]+)/0x(?P<size>[0-9a-f]+)"
    r"(?!\w)(?! \[[a-z]\w*)(?! [\w./+-]+\.\w+:[0-9])"
)


class InlinedCall(NamedTuple):
    """An instruction as given in a report; with `returns`, it is the one after the call."""

    function: str
    offset: int
    size: int
    returns: bool


class Location(NamedTuple):
    """A source line, in `function` or in a function inlined there."""

    function: str
    file: str
    line: int


# Returns the locations of an instruction, the innermost inlined function first; empty if unknown.
Lookup = Callable[[InlinedCall], Sequence[Location]]


def calls(report: CrashReport) -> set[InlinedCall]:
    """Return all instructions in the report that have a source line."""
    crashed = _crashed(report)
    frames = (*report.frames, *report.alloc_stack, *report.free_stack)
    inlined = {call for line in report.text.split("\n") if (call := _in_line(line))}
    inlined.update(call for frame in frames if (call := _of_frame(frame, crashed)))
    return inlined


def with_sources(report: CrashReport, lookup: Lookup) -> CrashReport:
    """Return the report with files, lines, inlined functions, and the file to blame."""
    crashed = _crashed(report)

    def expand(frames: Iterable[Frame]) -> tuple[Frame, ...]:
        return tuple(expanded for frame in frames for expanded in _expand(frame, crashed, lookup))

    text = "\n".join(
        annotated for line in report.text.split("\n") for annotated in _annotate(line, lookup)
    )
    return dataclasses.replace(
        report,
        text=text,
        frames=expand(report.frames),
        alloc_stack=expand(report.alloc_stack),
        free_stack=expand(report.free_stack),
        guilty_file=guilty_file(text) or report.guilty_file,
    )


def _crashed(report: CrashReport) -> set[Frame]:
    """Return the frames that give the instruction itself, not the one after a call."""
    return {frame for line in report.text.split("\n") if (frame := parse_crashed(line))}


def _of_frame(frame: Frame, crashed: set[Frame]) -> InlinedCall | None:
    if frame.offset is None or frame.size is None or frame.module or frame.file:
        return None
    return InlinedCall(frame.function, frame.offset, frame.size, frame not in crashed)


def _in_line(line: str) -> InlinedCall | None:
    match = _CALL.search(line)
    if match is None:
        return None
    offset, size = int(match["offset"], 16), int(match["size"], 16)
    return InlinedCall(match["function"], offset, size, parse_crashed(line) is None)


def _annotate(line: str, lookup: Lookup) -> Iterator[str]:
    match, call = _CALL.search(line), _in_line(line)
    places = lookup(call) if call else ()
    if match is None or not places:
        yield line
        return
    before, frame, after = line[: match.start()], match[0], line[match.end() :]
    for inlined in places[:-1]:
        yield f"{before}{inlined.function} {inlined.file}:{inlined.line} [inline]{after}"
    yield f"{before}{frame} {places[-1].file}:{places[-1].line}{after}"


def _expand(frame: Frame, crashed: set[Frame], lookup: Lookup) -> Iterator[Frame]:
    call = _of_frame(frame, crashed)
    places = lookup(call) if call else ()
    for inlined in places[:-1]:
        yield Frame(inlined.function, file=inlined.file, line=inlined.line, inlined=True)
    if places:
        frame = dataclasses.replace(frame, file=places[-1].file, line=places[-1].line)
    yield frame
