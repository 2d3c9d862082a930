"""The `history` step: which commits lie between two of a Git repository."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps.base import Count, Seconds, Step, StepKind, Strict
from kgym.api.steps.kernel import CommitName, GitSource

MOST_COMMITS = 100_000
"""Between two commits: as many as two years of Linux have."""
_Id = Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{40}$")]


class HistoryArtifact(StrEnum):
    """What a step leaves."""

    COMMITS = "commits.txt"
    """On each line `ID PARENT... TAB SUBJECT`: a commit, after all of its parents."""


class HistorySpec(Step):
    """List the commits that `source` has and `since`, which lies before it, has not."""

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    source: GitSource
    since: CommitName


class HistoryResult(Strict):
    """The list is the step's artifact (`HistoryArtifact`)."""

    kind: Literal[StepKind.HISTORY] = StepKind.HISTORY
    commit: _Id = Field(description="that `source` is: the last one of the list")
    since: _Id
    commits: Count
    seconds: Seconds = Field(description="by stage: history, store")
