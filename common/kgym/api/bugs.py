"""Bugs, summed up from their jobs: the bodies of the REST interface."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, BugName
from kgym.api.states import State
from kgym.api.steps import Count, Line, Strict, Verdict

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
    states: dict[State, Count] = Field(description="how many jobs, by state; no zeros")
    verdicts: dict[Verdict, Count] = Field(
        description="how many jobs have ended with a verdict, by verdict; no zeros"
    )
    patch: PatchState = Field(
        description="resolved: by some job's patch; unresolved: by none; untried: no job"
        " has a patch"
    )
    resolved: Count = Field(description="jobs whose patch resolves it")
    unresolved: Count = Field(description="jobs whose patch does not")
    resolved_job: int | None = Field(description="the newest job whose patch resolves it")
    verdict: Verdict | None = Field(description="verdict of its newest job that has one")
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
