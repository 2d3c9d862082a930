"""The feed of all jobs' changes: the bodies of GET /v1/changes."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, WorkerState
from kgym.api.steps import Strict

# A place in the feed.
Cursor = Annotated[str, Field(max_length=18, pattern="^[0-9]{1,18}$")]


class TagsChange(Strict):
    """`data` of a `tags` change: the job's tags were replaced."""

    tags: list[str]


class WorkerChange(Strict):
    """`data` of a `worker` change."""

    state: WorkerState | Literal["gone"] = Field(
        description="`gone`: it has ended, or was lost a day ago; the others as in /v1/workers"
    )


class Change(Strict):
    """A change, or where the feed begins."""

    kind: Literal["begin", "reset", "state", "tags", "worker"] = Field(
        description="begin: the feed begins at this cursor; reset: the cursor asked for is too "
        "old, or none, so changes were left out: read again what is shown; state: a step has"
        " changed its state; tags: a job has other tags; worker: a worker came, went, drains"
    )
    cursor: Cursor = Field(description="to go on behind this change; ascends, but for `worker`")
    at: datetime
    job: int | None = None
    step: int | None = Field(None, description="the step's number, from 0; only with `state`")
    worker: str | None = None
    data: dict[str, Any] = Field(
        description="as its `kind` says: a StateEvent, a TagsChange or a WorkerChange; else empty"
    )


class ChangeFilter(Strict):
    """Which page of the feed is wanted."""

    after: Cursor | None = Field(
        None, description="`next` or `cursor` of what is known; without it, the end of the feed"
    )
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = Field(200, description="changes at most")


class ChangePage(Strict):
    """A page of the feed, in order; workers' changes are not in it (see /v1/workers)."""

    changes: list[Change]
    next: Cursor = Field(description="give it as `after` for what follows")
    more: bool = Field(description="whether there is more already; a page may be empty even so")
    reset: bool = Field(
        description="the cursor asked for is too old, or none: read again what you know of jobs"
    )


# What `data` holds, by the kind of the change, besides a StateEvent.
CHANGES: dict[str, type[Strict]] = {"tags": TagsChange, "worker": WorkerChange}
