"""Shared by all routes: the scheduler, numbers in paths, the caller and what it may submit."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import Field

from kgym.api.jobs import DIGITS, JobRequest
from kgym.api.steps import Kernel
from kgym.errors import Forbidden
from kgym.web.scopes import Scope
from kgym_scheduler.database.tokens import Submitter
from kgym_scheduler.scheduler import Scheduler

JobId = Annotated[int, Path(ge=1, lt=1 << 63, description="of the job, from 1"), DIGITS]
StepNumber = Annotated[
    int, Path(ge=0, lt=100, description="of the step in its job, from 0"), DIGITS
]
StepQuery = Annotated[Annotated[int, Field(ge=0, lt=100), DIGITS] | None, Query()]


async def _scheduler(request: Request) -> Scheduler:
    # async, as FastAPI runs a plain dependency in a thread.
    scheduler: Scheduler = request.app.state.scheduler
    return scheduler


Core = Annotated[Scheduler, Depends(_scheduler)]


def caller_of(request: Request) -> Submitter:
    """Return the caller of the request."""
    caller: Submitter = request.state.caller
    return caller


async def admit(http: Request, jobs: Sequence[JobRequest]) -> Submitter:
    """Return the caller; raise Forbidden or TooMany unless it may submit these jobs."""
    caller, state = caller_of(http), http.app.state
    for job in jobs:
        _check(caller, job)
    if caller.owner is not None:  # no admin
        state.volume.take(caller.name, len(await http.body()))
    await state.quota.take(caller.name, len(jobs))
    return caller


def _check(caller: Submitter, job: JobRequest) -> None:
    """Raise Forbidden if the job would harm others' jobs: by its priority, or by `refresh`."""
    if caller.may(Scope.ADMIN):
        return
    if job.priority > caller.priority:
        raise Forbidden(
            "priority_too_high",
            f"the token {caller.name!r} allows a priority of {caller.priority} at most, not"
            f" {job.priority}; `kgym token create --priority` makes one that allows more",
            limit=caller.priority,
        )
    if any(isinstance(spec, Kernel) and spec.cache == "refresh" for spec in job.steps):
        raise Forbidden(
            "refresh_needs_admin",
            "`cache: refresh` makes anew what all others build on, and needs the scope admin;"
            " `fresh` runs the step again on the existing entry",
        )
