"""Naming a report: which message it is, which function is to blame, whether it is intact."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.report.families import Family, Format
from kgym.report.frames import FUNC, PC
from kgym.report.model import CrashType
from kgym.report.title import clean, type_of
from kgym.report.walk import FRAMES, STARTS, blame

CORRUPTED = "corrupted"
"""Stands in titles where the function to blame could not be found."""
NO_FRAMES = "no frames in the stack trace"
_LOST_STACKS = re.compile(
    r"slab index [0-9]+ out of bounds \([0-9]+\) for stack id"
)  # lib/stackdepot.c
_HEADLESS = (re.compile(rf"{PC} {FUNC}"),)
_MERGED_TIME = re.compile(r"\[ *[0-9]+\.[0-9]+\]")


@dataclass(frozen=True, slots=True)
class Description:
    """Title, other titles and type of a report, and why it is corrupted ("" where it is not)."""

    title: str
    alt_titles: tuple[str, ...]
    type: CrashType
    corrupted: str


def describe(lines: Sequence[str], family: Family, whole: str) -> Description | None:
    """Describe the report that `lines` hold, without console prefixes; None if it is none.

    `whole` is the report with all that may belong to it.
    """
    text = "\n".join(lines)
    best: tuple[int, Format, tuple[str, ...], str] | None = None
    matched = False
    for format_ in family.formats:
        match = format_.message_re.search(text)
        if match is None or (best and match.start() >= best[0]):
            continue
        matched = True
        fields = _fields(format_, match, text)
        if fields is None:
            continue
        titles, found = _titles(format_, fields, text[match.start() :].split("\n"))
        best = match.start(), format_, titles, "" if found else NO_FRAMES
    if best is None:
        return _undescribed(text, family, whole, matched=matched)
    _, format_, titles, corrupted = best
    title = clean(titles[0])
    corrupted = corrupted or ("" if format_.intact else "only damaged logs have this message")
    corrupted = corrupted or _damage(titles[0], whole, has_stack=format_.has_stack)
    type_ = format_.type if format_.type is not None else family.type
    return Description(
        title,
        tuple(sorted(clean(alt) for alt in titles[1:])),
        type_of(title) if type_ is None else type_,
        corrupted,
    )


def _fields(format_: Format, match: re.Match[str], text: str) -> dict[str, str] | None:
    fields = match.groupdict(default="")
    position = match.end()
    for then in format_.then_re:
        found = then.search(text, position)
        if found is None:
            return None
        fields.update(found.groupdict(default=""))
        position = found.end()
    return fields


def _titles(
    format_: Format, fields: dict[str, str], lines: Sequence[str]
) -> tuple[tuple[str, ...], bool]:
    """Fill in the title and the other titles; tell whether the function was found."""
    frames = [fields.get("func", "")]
    found = True
    if format_.walk:
        names = blame(lines, format_.walk)
        found = bool(names)
        frames = names or [CORRUPTED]
    if format_.origin:
        fields["origin"] = next(iter(blame(lines, format_.origin)), CORRUPTED)
    templates = (format_.title, *format_.alt)
    titles = [template.format(**fields, frame=frame) for frame in frames for template in templates]
    return tuple(dict.fromkeys(titles)), found


def _undescribed(text: str, family: Family, whole: str, *, matched: bool) -> Description | None:
    start = text.find(family.marker)
    if start < 0:
        return None
    title = clean(text[start:].partition("\n")[0])
    type_ = type_of(title) if family.type is None else family.type
    reason = "the report was cut short" if matched else ""
    return Description(title, (), type_, reason or _damage(title, whole, has_stack=True))


def _damage(title: str, text: str, *, has_stack: bool) -> str:
    """Say what is missing in a report that names a function."""
    if _MERGED_TIME.search(title):
        return "the title has a time stamp in it"
    if _LOST_STACKS.search(text):
        return "the kernel's own record of stacks is damaged"
    return _stack_damage(text) if has_stack else ""


def _stack_damage(text: str) -> str:
    """Say which stack trace is missing: each heading must have frames below it."""
    seen = False
    for start in STARTS:
        match = start.search(text)
        if match is None:
            continue
        lines = text[match.start() :].split("\n", 16)[1:16]
        if len(lines) < 3:
            return "the stack trace is missing"
        if not _holds_frames(lines):
            return NO_FRAMES
        seen = True
    # riscv prints the trace of a warning without a heading
    if seen or any(form.match(line) for line in text.split("\n") for form in _HEADLESS):
        return ""
    return "no stack trace in the report"


def _holds_frames(lines: Sequence[str]) -> bool:
    """Whether one of the first lines of a stack trace, up to the next trace, is a frame."""
    for line in lines:
        if "(stack is not available)" in line or any(form.match(line) for form in FRAMES):
            return True
        if any(start.search(line) for start in STARTS):
            return False
    return False
