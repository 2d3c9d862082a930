"""Groups of jobs, such as a sweep's: the bodies of the REST interface."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, GroupName, Submitter
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import Count, Line, Name, Strict, Verdict


class GroupView(Strict):
    """A group, summed up from its jobs: those of one submitter with its name, at least one."""

    name: GroupName
    submitter: Submitter
    created_at: datetime = Field(description="when the first of its jobs was submitted")
    updated_at: datetime = Field(description="when one of its jobs changed last")
    jobs: Count
    outcomes: dict[Outcome, Count] = Field(description="how many jobs, by outcome; no zeros")


class GroupFilter(Strict):
    """Conditions of a list of groups, newest first."""

    mine: bool = Field(False, description="only groups of the caller")
    cursor: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9]{1,17}-[0-9]{1,18}$",
        description="`next` of the page before",
    )
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="groups on a page")


class GroupPage(Strict):
    """One page of a list, newest first; `next` is the cursor of the page after it."""

    groups: list[GroupView]
    next: str | None


class GroupResult(Strict):
    """The result of a group's job: a row of the group's table."""

    job: int
    state: State
    tags: list[str]
    outcome: Outcome
    reason: Line | None = Field(
        description="what decided the outcome; null until the job has ended"
    )
    verdict: Verdict | None = Field(description="as JobView has it; null until the job has ended")
    title: Name | None = Field(
        description="title of the crash that decided the verdict, if one did"
    )
    seconds: float = Field(description="total duration of its ended steps")


class GroupResultFilter(Strict):
    """Selection of results, in the order in which the jobs were submitted."""

    submitter: Submitter | None = Field(
        None, description="the group's submitter; by default the caller"
    )
    cursor: str | None = Field(
        None, max_length=18, pattern="^[0-9]{1,18}$", description="`next` of the page before"
    )
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = Field(200, description="jobs on a page")
    format: Literal["json", "csv"] = Field(
        "json", description="csv: all results from the cursor on, without a limit"
    )


class GroupResultPage(Strict):
    """One page of a group's results, oldest job first; `next` is the cursor of the next page."""

    results: list[GroupResult]
    next: str | None
