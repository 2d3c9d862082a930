"""Bugs as the jobs on them tell of them: the bodies of the REST interface."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, BugName
from kgym.api.states import State
from kgym.api.steps import Count, Line, Strict, Verdict

PatchState = Literal["resolved", "unresolved", "untried"]
Told = Annotated[str, Field(min_length=1, max_length=60)]


class BugView(Strict):
    """A bug as its jobs stand: those with the tag `bug=` and its name, at least one."""

    name: BugName
    crash_class: str | None = Field(
        description="what its crash's title begins with: `KASAN slab-out-of-bounds`, `WARNING`"
    )
    subsystem: str | None = Field(
        description="the folder of the source file to blame, at most two names: `net/ipv4`"
    )
    title: Line | None = Field(description="of its crash, once a job has shown it")
    jobs: Count
    states: dict[State, Count] = Field(description="how many jobs, by state; no zeros")
    verdicts: dict[Verdict, Count] = Field(
        description="how many jobs have ended with a verdict, by verdict; no zeros"
    )
    patch: PatchState = Field(
        description="whether the patch of some job resolves it, or those of no job, or none was"
        " tried"
    )
    resolved: Count = Field(description="jobs whose patch resolves it")
    unresolved: Count = Field(description="jobs whose patch does not")
    resolved_job: int | None = Field(description="the newest job whose patch resolves it")
    verdict: Verdict | None = Field(description="of the newest of its jobs that has one")
    judged_at: datetime | None = Field(description="when that job ended")
    judged_job: int | None = Field(description="that job")
    created_at: datetime = Field(description="when the first of its jobs was submitted")
    active_at: datetime = Field(description="when the state of one of its jobs changed last")


class BugFilter(Strict):
    """Which bugs a list shows, those active last first; of more than 10,000, the first 10,000."""

    name: BugName | None = None
    crash_class: Told | None = None
    subsystem: Told | None = Field(None, description="with those below it: `net` has `net/ipv4`")
    verdict: Verdict | None = Field(None, description="bugs whose last verdict this is")
    patch: PatchState | None = None
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="bugs with this in their name or title, in any case"
    )
    cursor: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9]{1,17}-[0-9]{1,18}$",
        description="`next` of the page before",
    )
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="bugs on a page")


class BugPage(Strict):
    """One page of a list; `next` is the cursor of the page after it."""

    bugs: list[BugView]
    next: str | None
