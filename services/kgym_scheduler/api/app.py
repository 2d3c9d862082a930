"""The REST interface, /v1: the application with all routes."""

from typing import Any

from kgym.api.changes import CHANGES, Change
from kgym.api.jobs import EVENTS, JobEvent
from kgym.web.access import EVERYBODY
from kgym.web.routing import add_routes
from kgym.web.service import Service
from kgym_scheduler.api import (
    artifact_routes,
    bulk_routes,
    change_routes,
    group_routes,
    job_routes,
    scheduler_routes,
    source_routes,
    subject_routes,
    worker_routes,
)
from kgym_scheduler.api.caller_limits import CallerLimits, Quota, SubmittedBytes
from kgym_scheduler.api.metrics import Metrics
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.peer_api import routes as peer_routes
from kgym_scheduler.retention.upkeep import Upkeep
from kgym_scheduler.scheduler import Scheduler
from kgym_scheduler.source.sources import Sources

_ROUTERS = (
    scheduler_routes.everybody,
    job_routes.readers,
    change_routes.readers,
    job_routes.submitters,
    bulk_routes.submitters,
    group_routes.readers,
    group_routes.submitters,
    artifact_routes.readers,
    source_routes.readers,
    subject_routes.readers,
    subject_routes.admins,
    scheduler_routes.readers,
    scheduler_routes.admins,
    worker_routes.router,
    peer_routes.readers,
    peer_routes.submitters,
)


def create_app(
    scheduler: Scheduler,
    limits: CallerLimits | None = None,
    owner: str | None = None,
    upkeep: Upkeep | None = None,
    sources: Sources | None = None,
) -> Service:
    """Return the application for this scheduler, which the caller starts and stops.

    The token `owner` allows everything. Raises RuntimeError if a route does not declare who may
    use it (`access`).
    """
    limits = limits or CallerLimits()
    metrics = Metrics(scheduler, upkeep)
    scheduler.observers.append(metrics.ended)
    app = _Api(
        "kGymSuite scheduler",
        "Jobs are pipelines of steps: build a Linux kernel, reproduce a crash on it. "
        "Every error is a problem document (RFC 9457), `application/problem+json`.",
        tokens=Tokens(scheduler.store.database, owner=owner),
        limits=limits,
        metrics=metrics,
        models=[JobEvent, Change, *EVENTS.values(), *CHANGES.values()],
        hang_up=scheduler.hang_up,
        workers=worker_routes.PATHS,
    )
    app.state.scheduler = scheduler
    app.state.upkeep = upkeep
    app.state.sources = sources
    app.state.volume = SubmittedBytes(limits)
    app.state.quota = Quota(limits, scheduler.store.counts.unfinished)
    add_routes(app, _ROUTERS)
    app.add_api_route(
        "/readyz", scheduler_routes.readyz, dependencies=[EVERYBODY], include_in_schema=False
    )
    app.add_pages()
    app.guard()
    return app


class _Api(Service):
    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the schemas of the data of all events."""
        if self.openapi_schema is None:
            schema = super().openapi()
            data = schema["components"]["schemas"]["JobEvent"]["properties"]["data"]
            kinds = [model.__name__ for model in EVENTS.values()]
            data["anyOf"] = [{"$ref": f"#/components/schemas/{kind}"} for kind in kinds]
        return super().openapi()
