"""What a family of crashes is made of."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kgym.crash.report.blamed_function import BlameRule
from kgym.crash.report.frames import PC

_PARTS = {
    "{PC}": PC,
    "{FUNC}": r"(?P<func>[a-zA-Z0-9_]+)(?:\.|\+)",
    "{SOURCE}": r"(?P<source>[a-zA-Z0-9_/.-]+\.[a-z]+:[0-9]+)",
}


# What stands before a message of the kernel; programs print no time stamp.
BY_KERNEL = r"\[ *[0-9]+\.[0-9]+\](?:\[ *[CT][0-9]+\])? "


def expand(pattern: str) -> str:
    """Put the parts of kernel messages in for their names ({PC}, {FUNC}, {SOURCE})."""
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return pattern


@dataclass(frozen=True, slots=True)
class Format:
    """One message of a family, and the title that it gets.

    `message` is searched in the report, `then` further down from where it ended, one after the
    other; a report in which a `then` is missing was cut short. Their named groups, and `frame` and
    `origin`, the functions that `walk` blames, fill the fields of `title` and of `alt`.
    `has_stack` says that an intact report holds a stack trace; `intact` is False for messages
    that only show up in damaged logs.
    """

    message: str
    title: str
    alt: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    walk: BlameRule | None = None
    has_stack: bool = True
    intact: bool = True
    message_re: re.Pattern[str] = field(init=False)
    then_re: tuple[re.Pattern[str], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message_re", re.compile(expand(self.message), re.MULTILINE))
        object.__setattr__(
            self, "then_re", tuple(re.compile(expand(t), re.MULTILINE) for t in self.then)
        )


@dataclass(frozen=True, slots=True)
class Family:
    """Crashes whose first line holds `marker`.

    A line counts where it matches `accept` (if given) and not `reject`. `follows` says that it may
    stand in the middle of another report without beginning its own, `dying` that the kernel also
    prints it on its way down from another crash. A message that no format knows is its own title.
    """

    marker: str
    formats: tuple[Format, ...] = ()
    accept: str = ""
    reject: str = ""
    follows: bool = False
    dying: bool = False
    accept_re: re.Pattern[str] | None = field(init=False)
    reject_re: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accept_re", re.compile(self.accept) if self.accept else None)
        object.__setattr__(self, "reject_re", re.compile(self.reject) if self.reject else None)

    def announces(self, line: str) -> bool:
        """Whether `line`, which holds the marker, announces a crash of this family."""
        if self.accept_re and not self.accept_re.search(line):
            return False
        return not (self.reject_re and self.reject_re.search(line))


def formats(*groups: Format | Iterable[Format]) -> tuple[Format, ...]:
    """Flatten formats and groups of formats, in order: of two that match, the first counts."""
    flat: list[Format] = []
    for group in groups:
        flat.extend([group] if isinstance(group, Format) else group)
    return tuple(flat)
