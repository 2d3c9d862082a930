"""The description of a report: its message, the function to blame, whether it is intact."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.crash.report.blamed_function import (
    ANY_START,
    FRAME,
    HEADLESS,
    STARTS,
    WRAPPERS,
    Culprit,
    blame,
)
from kgym.crash.report.crash_report import CrashType
from kgym.crash.report.families import Family, Format
from kgym.crash.report.title import clean, type_of

_NO_FRAMES = "no frames in the stack trace"
_MERGED_TIME = re.compile(r"\[ *[0-9]+\.[0-9]+\]")
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
    best: tuple[Format, list[str], bool] | None = None
    start: int | None = None
    for format_ in family.formats:
        match = format_.message_re.search(text)
        if match is None or (start is not None and match.start() > start):
            continue
        if start is None or match.start() < start:
            start, best = match.start(), None
        fields = None if best else _fields(format_, match, text)
        if fields is not None:
            titles, has_frames = _titles(format_, fields, text[start:].split("\n"))
            best = format_, titles, has_frames
    if best is None:
        raw = text[max(text.find(family.marker), 0) :].partition("\n")[0]
        cut_short = "the report was cut short" if start is not None else ""
        return _description([raw], cut_short or _merged(raw))
    format_, titles, has_frames = best
    corrupted = "" if has_frames else _NO_FRAMES
    corrupted = corrupted or ("" if format_.intact else "only damaged logs have this message")
    corrupted = corrupted or _merged(titles[0])
    if not corrupted and format_.has_stack:
        corrupted = _stack_damage(whole)
    return _description(titles, corrupted)


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


def _titles(
    format_: Format, fields: dict[str, str], lines: Sequence[str]
) -> tuple[list[str], bool]:
    """Fill in the title and the other titles; return also whether the functions were found."""
    culprits, has_frames = blame(lines, format_.walk) if format_.walk else ([], True)
    templates = (format_.title, *format_.alt)
    titles = [
        template.format(**fields, **dict(zip(("frame", "origin"), names, strict=False)))
        for names in _namings(culprits)
        for template in templates
    ]
    return list(dict.fromkeys(titles)), has_frames


def _namings(culprits: Sequence[Culprit]) -> list[list[str]]:
    """Return the names for the title, then the functions' other names."""
    raw = [culprit.raw for culprit in culprits]
    stripped = ([name.removeprefix(wrapper) for name in raw] for wrapper in WRAPPERS)
    return [
        [culprit.name for culprit in culprits],
        raw,
        *(names for names in stripped if names != raw),
    ]


def _merged(title: str) -> str:
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
    for line in lines:
        if ANY_START.search(line):
            return False
        if "(stack is not available)" in line or FRAME.match(line):
            return True
    return False
