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
        description="`gone`: it ended, or was lost a day ago; others as in /v1/workers"
    )


class Change(Strict):
    """A change, or the beginning of the feed."""

    kind: Literal["begin", "reset", "state", "tags", "worker"] = Field(
        description="begin: the feed begins at this cursor; reset: the given cursor is too old or"
        " invalid, and changes are missing: read all again; state: a step's state changed; tags: a"
        " job's tags changed; worker: a worker started, ended or drains"
    )
    cursor: Cursor = Field(
        description="to continue after this change; ascending, except for `worker`"
    )
    at: datetime
    job: int | None = None
    step: int | None = Field(None, description="the step's number, from 0; only with `state`")
    worker: str | None = None
    data: dict[str, Any] = Field(
        description="by `kind`: a StateEvent, a TagsChange or a WorkerChange; else empty"
    )


class ChangeFilter(Strict):
    """Selection of a page of the feed."""

    after: Cursor | None = Field(
        None,
        description="`next` or `cursor` of the last known change; without it, the end of the feed",
    )
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = Field(200, description="changes at most")


class ChangePage(Strict):
    """A page of the feed, in order; workers' changes are not in it (see /v1/workers)."""

    changes: list[Change]
    next: Cursor = Field(description="pass it as `after` for the next page")
    more: bool = Field(description="whether more changes exist; a page may be empty nevertheless")
    reset: bool = Field(description="the given cursor is too old or invalid: read all jobs again")


# Type of `data` by kind of change, besides a StateEvent.
CHANGES: dict[str, type[Strict]] = {"tags": TagsChange, "worker": WorkerChange}
