"""The patches of a group of jobs: one row for each, with what is known of it."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, NumberCursor, Submitter
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import Count, Line, Name, Strict, Verdict


class Check(StrEnum):
    """What a patched kernel is examined for, in the order in which people read it."""

    REPRODUCER = "reproducer"
    """The reproducer does not crash it."""
    CONTROLS = "controls"
    """It still reports faults that are raised on purpose."""
    WORK = "work"
    """The reproducer does what it did on the unpatched kernel."""
    VARIANTS = "variants"
    """Programs close to the reproducer do not crash it."""
    BALANCE = "balance"
    """It frees what it allocates."""
    KERNEL_TESTS = "kernel_tests"
    """The kernel's own tests pass."""
    FINDINGS = "findings"
    """No finding on its patch, build or runs blocks."""


class PatchSummary(Strict):
    """What a finished job says about one patch; a job that checks patches has one for each."""

    patch: Name | None = Field(None, description="its name; null if the job tries no patch")
    outcome: Outcome
    reason: Line | None = None
    evidence: dict[Check, bool | None] = Field(
        {}, description="whether each check was passed; null: not known"
    )
    confidence: float | None = Field(
        None, description="that the bug is gone, from 0 to 1 (`ReproduceResult.confidence`)"
    )
    change: Name | None = Field(
        None, description="hash of what it changes: equal for patches with the same content"
    )
    files: Count | None = None
    added: Count | None = Field(None, description="lines")
    removed: Count | None = Field(None, description="lines")


class PatchRow(PatchSummary):
    """A patch of a group: a row of the group's table. Jobs without a patch have a row as well."""

    job: int
    bug: Name | None
    state: State
    tags: list[str]
    verdict: Verdict | None = Field(description="as JobView has it; null until the job has ended")
    title: Name | None = Field(
        description="title of the crash that decided the verdict, if one did"
    )
    seconds: float = Field(description="total duration of the job's ended steps")


class PatchFilter(Strict):
    """Selection of patches, in the order in which their jobs were submitted."""

    submitter: Submitter | None = Field(
        None, description="the group's submitter; by default the caller"
    )
    cursor: NumberCursor = None
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = Field(200, description="jobs on a page")
    format: Literal["json", "csv"] = Field(
        "json", description="csv: all patches from the cursor on, without a limit"
    )


class PatchPage(Strict):
    """One page of a group's patches, oldest job first; `next` is the cursor of the next page."""

    patches: list[PatchRow]
    next: str | None
