"""What the scheduler's routes share: the scheduler, numbers in paths, who calls."""

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


async def _scheduler(request: Request) -> Scheduler:  # a plain function runs in a thread
    scheduler: Scheduler = request.app.state.scheduler
    return scheduler


Core = Annotated[Scheduler, Depends(_scheduler)]


def caller_of(request: Request) -> Submitter:
    """Return who sends the request."""
    caller: Submitter = request.state.caller
    return caller
