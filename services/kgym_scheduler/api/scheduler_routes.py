"""The scheduler itself: its workers and queues, and how it is."""

from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import TypeAdapter

from kgym.api.jobs import CallerView, QueueView, WorkerView
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.storage import StorageView
from kgym.api.worker_calls import WORKER_ID
from kgym.errors import NotFound
from kgym.web.problems import documented
from kgym.web.routing import as_json, as_json_list, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core, caller_of
from kgym_scheduler.retention.upkeep import Upkeep

WorkerId = Annotated[str, Path(max_length=200, pattern=WORKER_ID)]

everybody = router(None)
readers = router(Scope.READ)
admins = router(Scope.ADMIN)
_WORKERS = TypeAdapter(list[WorkerView])
_QUEUES = TypeAdapter(list[QueueView])


@readers.get(
    "/workers",
    summary="Show the workers",
    tags=["scheduler"],
    response_model=list[WorkerView],
    responses=documented(),
)
async def workers(scheduler: Core) -> Response:
    """Show the workers, what they can do, when they were heard of, and what they run."""
    return as_json_list(_WORKERS, await scheduler.workers())


@admins.post(
    "/workers/{worker_id}/drain",
    summary="Drain a worker",
    tags=["scheduler"],
    response_model=WorkerView,
    responses=documented(404),
)
async def drain(scheduler: Core, worker_id: WorkerId) -> Response:
    """Let the worker finish what it runs, take no more, and end."""
    return as_json(await scheduler.drain(worker_id))


@readers.get(
    "/queues",
    summary="Show the queues",
    tags=["scheduler"],
    response_model=list[QueueView],
    responses=documented(),
)
async def queues(scheduler: Core) -> Response:
    """Show, by step kind, how many steps wait and run, and how long the oldest has waited."""
    return as_json_list(_QUEUES, await scheduler.queues())


@readers.get(
    "/statistics",
    summary="Count what was done",
    tags=["scheduler"],
    response_model=Statistics,
    responses=documented(),
)
async def statistics(scheduler: Core, wanted: Annotated[StatisticsFilter, Query()]) -> Response:
    """Count the attempts that ended in each minute, hour or day, by kind, outcome and reason.

    They are counted once, when the minute is over for two.
    """
    return as_json(await scheduler.statistics(wanted))


@readers.get(
    "/caller",
    summary="Show who calls",
    tags=["scheduler"],
    response_model=CallerView,
    responses=documented(),
)
async def caller(request: Request) -> Response:
    """Show whose token this request has: other services of the platform ask it so."""
    known = caller_of(request)
    return as_json(CallerView(name=known.name, scopes=sorted(known.scopes)))


@readers.get(
    "/storage",
    summary="Show what is stored",
    tags=["scheduler"],
    response_model=StorageView,
    responses=documented(404),
)
async def storage(request: Request) -> Response:
    """Show what artifacts, caches and database take, by kind, age and job; half a minute old."""
    upkeep: Upkeep | None = request.app.state.upkeep
    if upkeep is None:
        raise NotFound("no_upkeep", "this scheduler does not look after its storage")
    return as_json(await upkeep.use())


@everybody.get(
    "/healthz",
    summary="Whether the process lives",
    tags=["scheduler"],
    responses=documented(),
)
async def healthz() -> dict[str, str]:
    """Say that the process is alive; neither the database nor the bus is asked."""
    return {"status": "ok"}


@everybody.get(
    "/readyz",
    summary="Whether requests can be served",
    tags=["scheduler"],
    responses=documented(),
)
async def readyz(scheduler: Core) -> dict[str, str]:
    """Ask the database, the bus and the disks; a problem lists each, and what it lacks."""
    await scheduler.ready()
    return {"status": "ready"}
