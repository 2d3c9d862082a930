"""Attributes by which bugs are grouped: the views of Live-kBench section 4.3. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from kgym.bench.bug_record import BugFacts

UNKNOWN = "unknown"
_DAYS = (0, 7, 30, 90, 365)
_LINES = (0, 5, 10, 20, 50, 100)
_FILES = (1, 2, 3, 5)


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of bugs, and how to get a bug's values of it."""

    name: str
    """As used in addresses of pages."""
    words: str
    of: Callable[[BugFacts], Iterable[str]]
    choice: str | None = None
    """The field of `BugChoice` that accepts one of the values."""

    def groups(self, bugs: Iterable[BugFacts]) -> Mapping[str, list[BugFacts]]:
        """Return the bugs by value, in order; a bug with several values is in several groups."""
        groups: dict[str, list[BugFacts]] = {}
        for bug in bugs:
            for value in list(filter(None, self.of(bug))) or [UNKNOWN]:
                groups.setdefault(value, []).append(bug)
        return {value: groups[value] for value in sorted(groups, key=order)}


def order(value: str) -> tuple[bool, float, str]:
    """Return the sort key of a value: by its leading number, if it has one; unknown last."""
    head = value.partition(" ")[0]
    number = float(head) if head.isdecimal() and len(head) < 20 else 0.0
    return value == UNKNOWN, number, value


def _month(moment: datetime | None) -> list[str]:
    return [f"{moment:%Y-%m}"] if moment else []


def _range(number: float | None, limits: tuple[int, ...], unit: str) -> list[str]:
    if number is None:
        return []
    for low, high in pairwise(limits):
        if number < high:
            return [f"{low} to {high - 1} {unit}" if high - low > 1 else f"{low} {unit}"]
    return [f"{limits[-1]} {unit} and more"]


def _families(bug: BugFacts) -> list[str]:
    words = (compiler.casefold() for compiler in bug.compilers)
    return list(dict.fromkeys("clang" if "clang" in word else "gcc" for word in words))


def _folders(bug: BugFacts) -> list[str]:
    return list(dict.fromkeys(file.split("/")[0] for file in bug.files or () if "/" in file))


ATTRIBUTES: Mapping[str, Attribute] = {
    attribute.name: attribute
    for attribute in (
        Attribute("fixed", "Month of the fix", lambda bug: _month(bug.fixed)),
        Attribute("type", "Bug type", lambda bug: [bug.type], "types"),
        Attribute("class", "What the title begins with", lambda bug: [bug.crash_class], "classes"),
        Attribute("subsystem", "Subsystem", lambda bug: bug.subsystems or (), "subsystems"),
        Attribute("folder", "Folder of the fix", _folders, "touches"),
        Attribute("reported", "Month of the report", lambda bug: _month(bug.reported)),
        Attribute("days", "Days from report to fix", lambda b: _range(b.days_open, _DAYS, "days")),
        Attribute(
            "lines", "Lines that the fix changes", lambda b: _range(b.lines, _LINES, "lines")
        ),
        Attribute(
            "files",
            "Files that the fix changes",
            lambda bug: _range(None if bug.files is None else len(bug.files), _FILES, "files"),
        ),
        Attribute("reproducer", "Reproducer", lambda bug: [bug.reproducer], "reproducer"),
        Attribute("cause", "Cause bisected", lambda bug: ["yes" if bug.has_cause else "no"]),
        Attribute("racy", "Racy", lambda b: [] if b.racy is None else ["yes" if b.racy else "no"]),
        Attribute("compiler", "Compiler", _families, "compiler"),
        Attribute("status", "Status", lambda bug: [bug.status], "status"),
    )
}
