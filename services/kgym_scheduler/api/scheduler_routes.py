"""The scheduler itself: workers, queues, statistics, storage, health."""

from typing import Annotated

from fastapi import Path, Query, Request, Response

from kgym.api.jobs import CallerView, QueueView, WorkerView
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.storage import StorageView
from kgym.api.worker_calls import WORKER_ID
from kgym.errors import NotFound
from kgym.web.routing import as_json, as_json_list, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.retention.upkeep import Upkeep
from kgym_scheduler.routing import Core, caller_of

WorkerId = Annotated[str, Path(max_length=200, pattern=WORKER_ID)]

everybody = router(None, "scheduler")
readers = router(Scope.READ, "scheduler")
admins = router(Scope.ADMIN, "scheduler")


@readers.get("/workers", **described("Show the workers", list[WorkerView]))
async def workers(scheduler: Core) -> Response:
    """List the workers with their capabilities, last contact and running steps."""
    return as_json_list(await scheduler.store.workers())


@admins.post("/workers/{worker_id}/drain", **described("Drain a worker", WorkerView, 404))
async def drain(scheduler: Core, worker_id: WorkerId) -> Response:
    """Let the worker finish its running steps, take no more, and exit."""
    return as_json(await scheduler.store.drain(worker_id))


@readers.get("/queues", **described("Show the queues", list[QueueView]))
async def queues(scheduler: Core) -> Response:
    """Count queued and running steps by kind, with the age of the oldest queued one."""
    return as_json_list(await scheduler.store.queues())


@readers.get("/statistics", **described("Count attempts", Statistics))
async def statistics(scheduler: Core, conditions: Annotated[StatisticsFilter, Query()]) -> Response:
    """Count the attempts that ended in each minute, hour or day, by kind, outcome and reason.

    Attempts of the last two minutes are not counted yet.
    """
    return as_json(await scheduler.store.statistics(conditions))


@readers.get("/caller", **described("Show the caller", CallerView))
async def caller(request: Request) -> Response:
    """Return the owner of the request's token, for other services of the platform."""
    known = caller_of(request)
    return as_json(CallerView(name=known.name, scopes=sorted(known.scopes)))


@readers.get("/storage", **described("Show what is stored", StorageView, 404))
async def storage(request: Request) -> Response:
    """Return the bytes of artifacts, caches and database by kind, age and job, up to 30 s old."""
    upkeep: Upkeep | None = request.app.state.upkeep
    if upkeep is None:
        raise NotFound("no_upkeep", "this scheduler does not manage its storage")
    return as_json(await upkeep.use())


@everybody.get("/healthz", **described("Whether the process lives", dict[str, str]))
async def healthz() -> dict[str, str]:
    """Answer that the process is alive, without asking database or bus."""
    return {"status": "ok"}


@everybody.get("/readyz", **described("Whether requests can be served", dict[str, str]))
async def readyz(scheduler: Core) -> dict[str, str]:
    """Check database, bus and disks; a problem lists them, and what is wrong."""
    await scheduler.readiness.check()
    return {"status": "ready"}
