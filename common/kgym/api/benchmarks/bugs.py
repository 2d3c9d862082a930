"""What is known of a bug of a benchmark, without the long texts: what lists and filters use."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from kgym.api.benchmarks.attempts import BugId, Some, Words
from kgym.api.steps import Strict

FIX = 256 << 10
"""Characters of a developers' patch that is published; a longer one is left out."""

CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$", max_length=64)]
Status = Literal["open", "fixed", "invalid"]
Programs = Literal["c", "syz", "both", "none"]
Line = Annotated[str, Field(max_length=1000)]


class BugFacts(Strict):
    """A bug by its attributes; what is not known is null."""

    id: BugId
    extid: Words | None = None
    title: Words
    titles: list[Words] = Field([], max_length=100, description="all that its crashes have had")
    status: Status
    subsystems: list[Line] | None = Field(None, max_length=100)
    type: Line = Field(description="as syzkaller sorts titles: `KASAN-READ`, `WARNING`")
    crash_class: Line = Field(description="what its title begins with: `KASAN use-after-free`")
    compilers: list[Words] = Field([], max_length=100, description="in syzbot's words")
    reproducer: Programs = "none"
    reported: AwareDatetime | None = None
    fixed: AwareDatetime | None = Field(None, description="when the fix was committed")
    fix: CommitId | None = None
    fix_title: Words | None = None
    lines: Some | None = Field(None, description="that the fix changes")
    files: list[Line] | None = Field(None, max_length=500, description="that the fix changes")
    functions: list[Line] | None = Field(None, max_length=500, description="`FILE:NAME`")
    has_cause: bool = Field(False, description="whether the commit is known that brought it")
    cause: CommitId | None = None
    racy: bool | None = Field(None, description="whether it showed in some of its runs alone")

    @property
    def days_open(self) -> float | None:
        """Days from its report to its fix, if both are known."""
        if self.reported is None or self.fixed is None:
            return None
        return (self.fixed - self.reported).total_seconds() / 86400


class PublishedBug(Strict):
    """A bug of a published benchmark, with the patch of the kernel's developers."""

    facts: BugFacts
    diff: Annotated[str, Field(max_length=FIX)] | None = None
