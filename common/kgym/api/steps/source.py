"""Steps that read source code, without a build.

`source` makes a kernel's source readable over REST; `history` lists commits of a Git repository.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps.base import Count, Line, Name, Needs, Seconds, Step, StepKind, Strict, TreePath
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
    """The step's artifacts."""

    LOOK = "look.txt"
    """The answer to a look."""
    COMMITS = "commits.txt"
    """A line `ID PARENT... TAB SUBJECT` for each commit, after all of its parents."""


class HistoryLook(Strict):
    """A look at a history that ends at the step's commit: at most 64 KiB of text.

    `log` lists commits, newest first; `show` is a commit with its diff; `blame` says which commits
    lines come from.
    """

    kind: Literal["log", "show", "blame"]
    # Git's arguments: none can hold a NUL.
    path: Annotated[TreePath, Field(pattern=r"^[^\x00]*$")] | None = Field(
        None, description="a file or folder that the commits change"
    )
    function: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_]\w*$")] | None = Field(
        None, description="of `log`: a function of the file at `path`"
    )
    words: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00]*$",
        description="of `log`: in the commits' messages",
    )
    limit: int = Field(20, ge=1, le=200, description="of `log`: commits")
    commit: Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{7,40}$")] | None = Field(
        None, description="of `show`"
    )
    first: int = Field(1, ge=1, lt=1 << 31, description="of `blame`: lines")
    last: int = Field(100, ge=1, lt=1 << 31)

    @model_validator(mode="after")
    def _whole(self) -> "HistoryLook":
        if (self.kind == "show") != (self.commit is not None):
            raise ValueError("`show` needs a `commit`; other looks begin at the step's own")
        if self.path is None and (self.kind == "blame" or self.function is not None):
            raise ValueError("give the `path` of a file")
        return self


class HistorySpec(Step):
    """Read the history of a commit: the commits since an ancestor, or a look at its past.

    Looks need a copy of the repository on the worker's machine, such as a mirror.
    """

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    source: GitSource
    since: CommitName | None = Field(
        None, description="list the commits of `source` that this ancestor does not have"
    )
    look: HistoryLook | None = None

    @model_validator(mode="after")
    def _one_question(self) -> "HistorySpec":
        if (self.since is None) == (self.look is None):
            raise ValueError("give either `since` or `look`")
        return self


class HistoryResult(Strict):
    """The list or the answer is the step's artifact (`HistoryArtifact`)."""

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    commit: _Id = Field(description="the commit of `source`: the last of the list")
    since: _Id | None = None
    commits: Count
    seconds: Seconds = Field(description="by stage: history, store")
