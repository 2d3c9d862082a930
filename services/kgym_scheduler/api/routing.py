"""Shared by all routes: the scheduler, numbers in paths, the caller."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import Field

from kgym.api.jobs import DIGITS
from kgym_scheduler.database.tokens import Submitter
from kgym_scheduler.scheduler import Scheduler

JobId = Annotated[int, Path(ge=1, lt=1 << 63, description="of the job, from 1"), DIGITS]
StepNumber = Annotated[
    int, Path(ge=0, lt=100, description="of the step in its job, from 0"), DIGITS
]
StepQuery = Annotated[Annotated[int, Field(ge=0, lt=100), DIGITS] | None, Query()]


async def _scheduler(
    request: Request,
) -> Scheduler:  # async, as FastAPI runs a plain function in a thread
    scheduler: Scheduler = request.app.state.scheduler
    return scheduler


Core = Annotated[Scheduler, Depends(_scheduler)]


def caller_of(request: Request) -> Submitter:
    """Return the caller of the request."""
    caller: Submitter = request.state.caller
    return caller
