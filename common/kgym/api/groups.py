"""Groups of jobs, such as a sweep's: the bodies of the REST interface."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from kgym.api.jobs import DIGITS, GroupName, PageCursor, Submitter
from kgym.api.outcomes import Outcome
from kgym.api.steps import Count, Strict


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
    cursor: PageCursor = None
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="groups on a page")


class GroupPage(Strict):
    """One page of a list, newest first; `next` is the cursor of the page after it."""

    groups: list[GroupView]
    next: str | None
