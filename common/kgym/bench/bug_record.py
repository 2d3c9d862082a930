"""A bug of a dataset: everything that is known of it. What is not known is null."""

from datetime import datetime
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from kgym.api.steps import Strict
from kgym.crash.report import CrashType, type_of
from kgym.crash.report.crash_class import crash_class

TEXT = 8 << 20
"""Characters of a config, a report, a program or a diff."""

CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$", max_length=64)]
Link = Annotated[str, Field(max_length=2000)]
Text = Annotated[str, Field(max_length=TEXT)]
Words = Annotated[str, Field(max_length=10_000)]
BugId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w][\w.:-]*$")]
Status = Literal["open", "fixed", "invalid"]


class Commit(Strict):
    """A commit, as syzbot names it: sometimes it knows the title alone."""

    title: Words | None = None
    id: CommitId | None = None
    link: Link | None = None
    repository: Link | None = None
    branch: Words | None = None


class FoundText(Strict):
    """A text that belongs to a crash: itself, or where it can be had, or both.

    A link without a host is one of syzbot's dashboard.
    """

    text: Text | None = None
    link: Link | None = None


class Crash(Strict):
    """One crash of the bug, with all that brings it back."""

    title: Words | None = None
    repository: Link | None = Field(None, description="URL of the kernel's Git repository")
    commit: CommitId | None = None
    config: FoundText = FoundText()
    compiler: Words | None = Field(None, description="in syzbot's words, the linker's with it")
    architecture: Words = "amd64"
    c_reproducer: FoundText = FoundText()
    syz_reproducer: FoundText = FoundText()
    report: FoundText = FoundText()
    syzkaller_repository: Link | None = None
    syzkaller_commit: CommitId | None = None


class Function(Strict):
    """A function of a source file."""

    file: Words
    name: Words


class DeveloperPatch(Strict):
    """How the kernel's developers have fixed the bug."""

    commits: list[Commit] = Field([], max_length=100)
    parent: CommitId | None = Field(None, description="the commit that the fix was made on")
    diff: Text | None = None
    message: Text | None = None
    date: AwareDatetime | None = None
    files: list[Words] | None = Field(None, max_length=10_000)
    functions: list[Function] | None = Field(None, max_length=10_000)

    @cached_property
    def lines(self) -> int | None:
        """How many lines the diff removes and adds."""
        if self.diff is None:
            return None
        headers = ("---", "+++")
        lines = self.diff.splitlines()
        return sum(line[:1] in "+-" and not line.startswith(headers) for line in lines if line)


class Cause(Strict):
    """The commit that brought the bug in."""

    commit: Commit
    date: AwareDatetime | None = None
    functions: list[Function] | None = Field(None, max_length=10_000)


class BugRecord(Strict):
    """A bug; `id` is its own in the dataset, `extid` the one of its mails."""

    id: BugId
    extid: Words | None = None
    title: Words
    display_title: Words | None = Field(
        None, description="as syzbot lists it: `TITLE (3)` is the third bug of this title"
    )
    status: Status
    subsystems: list[Words] | None = Field(None, max_length=1000)
    reported: AwareDatetime | None = None
    crashes: list[Crash] = Field([], max_length=1000)
    patch: DeveloperPatch | None = None
    cause: Cause | None = None
    discussions: list[Link] = Field([], max_length=1000)

    @property
    def titles(self) -> list[str]:
        """All titles that its crashes have had."""
        said = [self.title, *(one.title for one in self.crashes if one.title)]
        return list(dict.fromkeys(said))

    @property
    def type(self) -> CrashType:
        """The type of its crash, as syzkaller sorts titles."""
        return type_of(self.title)

    @property
    def crash_class(self) -> str:
        """What its title says of the crash, without where: `KASAN use-after-free`."""
        return crash_class(self.title)

    @property
    def fixed(self) -> datetime | None:
        """When the fix was committed."""
        return self.patch.date if self.patch is not None else None
