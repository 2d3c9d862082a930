"""Bugs, summed up from their jobs: the bodies of the REST interface."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, BugName, PageCursor
from kgym.api.outcomes import Outcome
from kgym.api.steps import Count, Line, Strict

PatchState = Literal["resolved", "unresolved", "untried"]
ShortText = Annotated[str, Field(min_length=1, max_length=60)]


class BugView(Strict):
    """A bug, summed up from its jobs: those with the tag `bug=` and its name, at least one."""

    name: BugName
    crash_class: str | None = Field(
        description="the beginning of its crash's title: `KASAN slab-out-of-bounds`, `WARNING`"
    )
    subsystem: str | None = Field(
        description="the folder of the source file to blame, at most two names: `net/ipv4`"
    )
    title: Line | None = Field(description="title of its crash, once a job has shown it")
    jobs: Count
    outcomes: dict[Outcome, Count] = Field(description="how many jobs, by outcome; no zeros")
    patch: PatchState = Field(
        description="resolved: by some job's patch; unresolved: by none; untried: no job"
        " has tried a patch to the end"
    )
    resolved_job: int | None = Field(description="the newest job whose patch resolves it")
    outcome: Outcome | None = Field(
        description="of its newest job that has run a kernel to the end"
    )
    judged_at: datetime | None = Field(description="when that job ended")
    judged_job: int | None = Field(description="that job")
    created_at: datetime = Field(description="when the first of its jobs was submitted")
    active_at: datetime = Field(description="when the state of one of its jobs changed last")


class BugFilter(Strict):
    """Conditions of a list of bugs: the 10,000 last active ones, in that order."""

    name: BugName | None = None
    crash_class: ShortText | None = None
    subsystem: ShortText | None = Field(
        None, description="with those below it: `net` has `net/ipv4`"
    )
    outcome: Outcome | None = Field(None, description="bugs whose `outcome` this is")
    patch: PatchState | None = None
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="bugs with this in their name or title, in any case"
    )
    cursor: PageCursor = None
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="bugs on a page")


class BugPage(Strict):
    """One page of a list; `next` is the cursor of the page after it."""

    bugs: list[BugView]
    next: str | None
