"""The record of a bug in a dataset. Unknown values are null."""

from datetime import datetime
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import BugId, Count32, Text, Words
from kgym.crash.report import CrashType, type_of
from kgym.crash.report.crash_class import crash_class

# Maximum characters of a published developers' patch; a longer one is left out.
FIX = 256 << 10

CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$", max_length=64)]
Status = Literal["open", "fixed", "invalid"]
Programs = Literal["c", "syz", "both", "none"]
Line = Annotated[str, Field(max_length=1000)]
Link = Annotated[str, Field(max_length=2000)]


class Commit(Strict):
    """A commit as named by syzbot, which sometimes knows only the title."""

    title: Words | None = None
    id: CommitId | None = None
    link: Link | None = None
    repository: Link | None = None
    branch: Words | None = None


class FoundText(Strict):
    """A text that belongs to a crash: its content, its link, or both.

    A link without a host belongs to syzbot's dashboard.
    """

    text: Text | None = None
    link: Link | None = None


class Crash(Strict):
    """One crash of the bug, with everything that reproduces it."""

    title: Words | None = None
    repository: Link | None = Field(None, description="URL of the kernel's Git repository")
    commit: CommitId | None = None
    config: FoundText = FoundText()
    compiler: Words | None = Field(None, description="in syzbot's words, with the linker")
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
    """The fix by the kernel's developers."""

    commits: list[Commit] = Field([], max_length=100)
    parent: CommitId | None = Field(None, description="the commit that the fix was made on")
    diff: Text | None = None
    message: Text | None = None
    date: AwareDatetime | None = None
    files: list[Words] | None = Field(None, max_length=10_000)
    functions: list[Function] | None = Field(None, max_length=10_000)

    @cached_property
    def lines(self) -> int | None:
        """The number of lines that the diff removes and adds."""
        if self.diff is None:
            return None
        headers = ("---", "+++")
        lines = self.diff.splitlines()
        return sum(line[:1] in "+-" and not line.startswith(headers) for line in lines if line)


class Cause(Strict):
    """The commit that introduced the bug."""

    commit: Commit
    date: AwareDatetime | None = None
    functions: list[Function] | None = Field(None, max_length=10_000)


class Validation(Strict):
    """The result of trying the bug before any agent was measured on it (`kgym bench validate`)."""

    kernel: Words = Field(description="parent of its fix, or the shared kernel it came back on")
    crashed: int = Field(ge=1, description="of the runs on the kernel with the bug")
    runs: int = Field(ge=1)
    instances: int = Field(ge=1, description="runs that a kernel must survive to prove a fix")
    seconds: float = Field(gt=0, le=1e9, description="of each of them")

    @property
    def racy(self) -> bool:
        """Whether it showed in some of the runs only (RGym's column Racey)."""
        return self.crashed < self.runs


class BugFacts(Strict):
    """A bug's attributes; unknown ones are null."""

    # Readers keep the facts of up to 100,000 bugs in memory: no long texts, and bounded lists.

    id: BugId
    extid: Words | None = None
    title: Words
    titles: list[Words] = Field([], max_length=100, description="of all its crashes")
    status: Status
    subsystems: list[Line] | None = Field(None, max_length=100)
    type: Line = Field(description="as syzkaller classifies titles: `KASAN-READ`, `WARNING`")
    crash_class: Line = Field(description="beginning of its title: `KASAN use-after-free`")
    compilers: list[Words] = Field([], max_length=100, description="in syzbot's words")
    reproducer: Programs = "none"
    reported: AwareDatetime | None = None
    fixed: AwareDatetime | None = Field(None, description="when the fix was committed")
    fix: CommitId | None = None
    fix_title: Words | None = None
    lines: Count32 | None = Field(None, description="changed by the fix")
    files: list[Line] | None = Field(None, max_length=500, description="changed by the fix")
    functions: list[Line] | None = Field(None, max_length=500, description="`FILE:NAME`")
    has_cause: bool = Field(False, description="whether the introducing commit is known")
    cause: CommitId | None = None
    racy: bool | None = Field(None, description="whether it showed in some of its runs only")

    @property
    def days_open(self) -> float | None:
        """Days from report to fix, if both dates are known."""
        if self.reported is None or self.fixed is None:
            return None
        return (self.fixed - self.reported).total_seconds() / 86400


class PublishedBug(Strict):
    """A bug of a published benchmark, with the patch of the kernel's developers."""

    facts: BugFacts
    diff: Annotated[str, Field(max_length=FIX)] | None = None


class BugRecord(Strict):
    """A bug; `id` identifies it in the dataset, `extid` is the id in syzbot's mails."""

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
    bundle: Words | None = Field(
        None, description="bundle by which it is tried: a shipped bug's name, or a folder"
    )
    validation: Validation | None = None

    @property
    def titles(self) -> list[str]:
        """The titles of all its crashes, without repeats."""
        titles = [self.title, *(crash.title for crash in self.crashes if crash.title)]
        return list(dict.fromkeys(titles))

    @property
    def type(self) -> CrashType:
        """The type of its crash, as syzkaller classifies titles."""
        return type_of(self.title)

    @property
    def crash_class(self) -> str:
        """The kind of crash in its title, without the place: `KASAN use-after-free`."""
        return crash_class(self.title)

    @property
    def fixed(self) -> datetime | None:
        """The date of the fix's commit."""
        return self.patch.date if self.patch is not None else None

    @property
    def facts(self) -> BugFacts:
        """The attributes used by lists and filters; long lists are cut."""
        patch = self.patch or DeveloperPatch()
        fix = patch.commits[0] if patch.commits else Commit()
        functions = patch.functions
        same = ("id", "extid", "title", "status", "type", "crash_class", "reported", "fixed")
        return BugFacts(
            **{name: getattr(self, name) for name in same},
            titles=self.titles[:100],
            subsystems=_first(self.subsystems, 100),
            compilers=list(
                dict.fromkeys(crash.compiler for crash in self.crashes if crash.compiler)
            )[:100],
            reproducer=self._programs,
            fix=fix.id,
            fix_title=fix.title,
            lines=patch.lines,
            files=_first(patch.files, 500),
            functions=None
            if functions is None
            else _first([f"{function.file}:{function.name}" for function in functions], 500),
            has_cause=self.cause is not None,
            cause=self.cause.commit.id if self.cause else None,
            racy=self.validation.racy if self.validation else None,
        )

    @property
    def published(self) -> PublishedBug:
        """Its attributes and the developers' patch, unless that is too long to publish."""
        diff = self.patch.diff if self.patch is not None else None
        return PublishedBug(facts=self.facts, diff=diff if diff and len(diff) <= FIX else None)

    @property
    def _programs(self) -> Programs:
        c = any(crash.c_reproducer.text or crash.c_reproducer.link for crash in self.crashes)
        syz = any(crash.syz_reproducer.text or crash.syz_reproducer.link for crash in self.crashes)
        if c and syz:
            return "both"
        return "c" if c else "syz" if syz else "none"


def _first(words: list[str] | None, most: int) -> list[str] | None:
    return None if words is None else [word[:1000] for word in words[:most]]
