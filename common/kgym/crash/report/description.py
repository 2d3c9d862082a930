"""The description of a report: its message, the function to blame, whether it is intact."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from kgym.crash.report.blamed_function import (
    ANY_START,
    FRAME,
    HEADLESS,
    NOBODY,
    STARTS,
    WRAPPERS,
    Culprit,
    blame,
    culprit,
)
from kgym.crash.report.crash_report import CrashType
from kgym.crash.report.families import Family, Format
from kgym.crash.report.title import clean, type_of

_NO_FRAMES = "no frames in the stack trace"
_MERGED_TIME = re.compile(r"\[ *[0-9]+\.[0-9]+\]")
# Whose registers or stack a report prints.
_PRINTER = re.compile(r"CPU: ([0-9]+) (?:UID: [0-9]+ )?PID: ([0-9]+) ")
_ENOUGH_LINES = 15


@dataclass(frozen=True, slots=True)
class Description:
    """Title, other titles and type of a report, and why it is corrupted ("" if it is not)."""

    title: str
    alt_titles: tuple[str, ...]
    type: CrashType
    corrupted: str


def describe(lines: Sequence[str], family: Family, whole: str) -> Description:
    """Describe the report in `lines`, which have no console prefixes.

    The first message counts; of two at the same position, the family's first format. `whole` is the
    report including lines that may not belong to it.
    """
    text = "\n".join(lines)
    best: tuple[Format, dict[str, str]] | None = None
    start: int | None = None
    for format_ in family.formats:
        match = format_.message_re.search(text)
        if match is None or (start is not None and match.start() > start):
            continue
        if start is None or match.start() < start:
            start, best = match.start(), None
        fields = None if best else _fields(format_, match, text)
        if fields is not None:
            best = format_, fields
    if best is None:
        raw = text[max(text.find(family.marker), 0) :].partition("\n")[0]
        cut_short = "the report was cut short" if start is not None else ""
        return _description([raw], cut_short or _merged(raw, family.marker))
    format_, fields = best
    culprits, damage = _culprits(format_, fields, text[start:].split("\n"), whole)
    titles = _titles(format_, fields, culprits)
    damage = damage if format_.intact else "only damaged logs have this message"
    return _description(titles, damage or _merged(titles[0], family.marker))


def _description(titles: Sequence[str], corrupted: str) -> Description:
    title = clean(titles[0])
    others = tuple(sorted(clean(other) for other in titles[1:]))
    return Description(title, others, type_of(title), corrupted)


def _fields(format_: Format, match: re.Match[str], text: str) -> dict[str, str] | None:
    fields = match.groupdict(default="")
    position = match.end()
    for then in format_.then_re:
        further = then.search(text, position)
        if further is None:
            return None
        fields.update(further.groupdict(default=""))
        position = further.end()
    return fields


def _culprits(
    format_: Format, fields: dict[str, str], lines: Sequence[str], whole: str
) -> tuple[list[Culprit], str]:
    """Return the functions to blame, and what is damaged in their stack traces."""
    walk = format_.walk
    if walk is None:
        return [], _stack_damage(whole) if format_.has_stack else ""
    if _is_mixed(lines):
        return [NOBODY, NOBODY], "the messages of several tasks are mixed"
    culprits, has_frames = blame(lines, walk)
    damage = "" if has_frames else _NO_FRAMES
    function = fields.get("func")
    if format_.names and function and not walk.passes_over(function):
        # Since Linux 6.18, the message also says on which CPU: nothing else can be meant.
        certain = ", CPU#" in lines[0] and whole.rstrip().endswith(lines[-1].rstrip())
        stackless = not any(map(ANY_START.search, lines))
        if stackless and (certain or any(map(_PRINTER.match, lines))):
            return [culprit(function)], ""
        if certain and not has_frames:
            return [culprit(function)], damage
    if not damage and format_.has_stack:
        damage = _stack_damage(whole)
    return culprits, damage


def _is_mixed(lines: Sequence[str]) -> bool:
    """Return whether several tasks print registers before the first stack trace."""
    printers = set()
    in_trace = False
    for line in lines:
        in_trace = in_trace or ANY_START.search(line) is not None
        if in_trace and FRAME.match(line):
            break
        if printer := _PRINTER.match(line):
            printers.add(printer.groups())
    return len(printers) > 1


def _titles(format_: Format, fields: dict[str, str], culprits: Sequence[Culprit]) -> list[str]:
    """Fill in the title and the other titles."""
    templates = (format_.title, *format_.alt)
    titles = (
        template.format(**fields, **dict(zip(("frame", "origin"), names, strict=False)))
        for names in _namings(culprits)
        for template in templates
    )
    return list(dict.fromkeys(titles))


def _namings(culprits: Sequence[Culprit]) -> list[list[str]]:
    """Return the names for the title, then the functions' other names."""
    raw = [blamed.raw for blamed in culprits]
    stripped = ([name.removeprefix(wrapper) for name in raw] for wrapper in WRAPPERS)
    return [
        [blamed.name for blamed in culprits],
        raw,
        *(names for names in stripped if names != raw),
    ]


def _merged(title: str, marker: str) -> str:
    if title.count(marker) > 1:
        return "two messages are mixed in the title"
    return "the title has a time stamp in it" if _MERGED_TIME.search(title) else ""


def _stack_damage(text: str) -> str:
    """Return which stack trace is missing: each heading must have frames below it."""
    seen = False
    for start in (*STARTS, HEADLESS):
        match = start.search(text)
        if match is None:
            continue
        lines = text[match.start() :].split("\n", _ENOUGH_LINES + 1)[1 : _ENOUGH_LINES + 1]
        if len(lines) < 3:
            return "the stack trace is missing"
        if _holds_frames(lines):
            seen = True
        elif start is not HEADLESS:
            return _NO_FRAMES
    return "" if seen else "no stack trace in the report"


def _holds_frames(lines: Sequence[str]) -> bool:
    """Return whether one of the first lines of a stack trace, up to the next one, is a frame."""
    trace = takewhile(lambda line: not ANY_START.search(line), lines)
    return any("(stack is not available)" in line or FRAME.match(line) for line in trace)
