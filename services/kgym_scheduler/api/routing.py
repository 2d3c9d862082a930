"""What the routes share: who may use them, what they take, how they answer."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field, TypeAdapter

from kgym.api.jobs import DIGITS
from kgym_scheduler.api.access import EVERYBODY, needs
from kgym_scheduler.api.strict_requests import StrictRoute
from kgym_scheduler.database.tokens import Scope
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


def router(scope: Scope | None) -> APIRouter:
    """Return a router for what takes this scope; None is for everybody."""
    dependencies = [needs(scope) if scope else EVERYBODY]
    return APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=dependencies)


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the model as it is: it has been validated once."""
    return Response(model.model_dump_json(), status, headers, "application/json")


def as_json_list(adapter: TypeAdapter[list[Any]], models: list[Any]) -> Response:
    """Return the models as they are."""
    return Response(adapter.dump_json(models), media_type="application/json")
