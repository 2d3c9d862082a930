"""Steps that read source code, without a build.

`source` makes a kernel's source readable over REST; `history` lists commits of a Git repository.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Needs, Seconds, Step, StepKind, Strict
from kgym.api.steps.compilers import Compiler, needed
from kgym.api.steps.kernel import Backports, CommitName, GitSource, KernelSource, Patch, SourceName

# Maximum number of listed commits: two years of Linux.
MOST_COMMITS = 100_000
_Id = Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{40}$")]


class SourceSpec(Step):
    """Make source code readable as builds see it: source, backports, then `patches` in order.

    It is done once for all jobs with that source.
    """

    kind: Literal[StepKind.SOURCE] = StepKind.SOURCE
    source: KernelSource
    compiler: Compiler = Field("gcc", description="determines which backports apply")
    backports: Backports = []
    patches: list[Patch] = Field([], max_length=100)

    def needs(self) -> Needs:
        """Return the needs of a build of this source."""
        return needed(self.compiler)


class SourceResult(Strict):
    """The source that can be read now, by this job's number."""

    kind: Literal[StepKind.SOURCE] = StepKind.SOURCE
    source_identity: Line = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    backports: list[Name] = Field(max_length=1000)
    source_tree: SourceName
    made: bool = Field(description="whether this step made it; false if it existed")
    files: Count
    bytes: Count
    seconds: Seconds = Field(description="by stage: source, index, store")


class HistoryArtifact(StrEnum):
    """The step's artifact."""

    COMMITS = "commits.txt"
    """A line `ID PARENT... TAB SUBJECT` for each commit, after all of its parents."""


class HistorySpec(Step):
    """List the commits of `source` that its ancestor `since` does not have."""

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    source: GitSource
    since: CommitName


class HistoryResult(Strict):
    """The list is the step's artifact (`HistoryArtifact`)."""

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    commit: _Id = Field(description="the commit of `source`: the last of the list")
    since: _Id
    commits: Count
    seconds: Seconds = Field(description="by stage: history, store")
