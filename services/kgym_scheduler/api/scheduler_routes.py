"""The scheduler itself: its workers and queues, and how it is."""

from typing import Annotated

from fastapi import Path, Request, Response
from pydantic import TypeAdapter

from kgym.api.jobs import QueueView, WorkerView
from kgym.api.storage import StorageView
from kgym.api.worker_calls import WORKER_ID
from kgym_scheduler.api.problems import documented
from kgym_scheduler.api.routing import Core, as_json, as_json_list, router
from kgym_scheduler.database.tokens import Scope
from kgym_scheduler.errors import NotFound
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
    """Ask the database and the bus; a problem lists each, and what is the matter with it."""
    await scheduler.ready()
    return {"status": "ready"}
