"""Families of crashes, and the formats of their messages."""

import re
from dataclasses import dataclass, field

from kgym.crash.report.blamed_function import NEVER, BlameRule
from kgym.crash.report.frames import AFTER, PC

_PARTS = {
    "{PC}": PC,
    "{FUNC}": rf"(?P<func>[a-zA-Z0-9_]+){AFTER}",
    "{SOURCE}": r"(?P<source>[a-zA-Z0-9_/.-]+\.[a-z]+:[0-9]+)",
}


# The prefix of a kernel message; programs print no time stamp.
BY_KERNEL = r"\[ *[0-9]+\.[0-9]+\](?: ?\[ *[CT][0-9]+\])* "


def expand(pattern: str) -> str:
    """Replace the placeholders of a pattern ({PC}, {FUNC}, {SOURCE})."""
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return pattern


@dataclass(frozen=True, slots=True)
class Format:
    """One message of a family, and the title made of it.

    `message` is searched in the report, then the patterns of `then` one after the other, each after
    the previous match; if one is missing, the report was cut short. Their named groups, and `frame`
    and `origin`, the functions blamed by `walk`, fill the fields of `title` and `alt`. `has_stack`
    says that an intact report has a stack trace; `intact` is False for messages that only occur in
    damaged logs. With `names`, the message names the function to blame, and suffices without a
    stack trace.
    """

    message: str
    title: str
    alt: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    walk: BlameRule | None = None
    has_stack: bool = True
    intact: bool = True
    names: bool = False
    message_re: re.Pattern[str] = field(init=False)
    then_re: tuple[re.Pattern[str], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message_re", re.compile(expand(self.message), re.MULTILINE))
        object.__setattr__(
            self, "then_re", tuple(re.compile(expand(t), re.MULTILINE) for t in self.then)
        )


@dataclass(frozen=True, slots=True)
class Family:
    """Crashes whose first line contains `marker`.

    A line counts if it matches `accept` (if given) and not `reject`. `follows` says that it may be
    in the middle of another report without beginning its own; `dying` says that the kernel also
    prints it while it dies of another crash. A message without a format is its own title.
    """

    marker: str
    formats: tuple[Format, ...] = ()
    accept: str = ""
    reject: str = NEVER
    follows: bool = False
    dying: bool = False
    accept_re: re.Pattern[str] = field(init=False)
    reject_re: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accept_re", re.compile(self.accept))
        object.__setattr__(self, "reject_re", re.compile(self.reject))

    def announces(self, line: str) -> bool:
        """Return whether `line`, which contains the marker, announces a crash of this family."""
        return bool(self.accept_re.search(line)) and not self.reject_re.search(line)
