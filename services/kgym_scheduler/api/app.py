"""The REST interface, /v1: the application that its routes are parts of."""

import asyncio
import json
from functools import partial
from typing import Any

from fastapi import (
    Depends,
    FastAPI,
    Request,
    Response,
)
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel

from kgym.api.jobs import EVENTS, JobEvent
from kgym_scheduler.api import (
    artifact_routes,
    bulk_routes,
    group_routes,
    job_routes,
    scheduler_routes,
    worker_routes,
)
from kgym_scheduler.api.access import EVERYBODY, PublicFiles, needs, open_paths
from kgym_scheduler.api.caller_limits import (
    BodyLimit,
    CallerLimits,
    QueryLimit,
    Quota,
    Rates,
    Streams,
    SubmittedBytes,
)
from kgym_scheduler.api.express_requests import Express
from kgym_scheduler.api.metrics import MEDIA_TYPE, Counted, Metrics
from kgym_scheduler.api.problems import Problem, install
from kgym_scheduler.api.strict_requests import known_request
from kgym_scheduler.api.token_check import Door
from kgym_scheduler.database.counts import unfinished
from kgym_scheduler.database.tokens import Scope, Tokens
from kgym_scheduler.retention.upkeep import Upkeep
from kgym_scheduler.scheduler import Scheduler

_ROUTERS = (
    scheduler_routes.everybody,
    job_routes.readers,
    job_routes.submitters,
    bulk_routes.submitters,
    group_routes.readers,
    group_routes.submitters,
    artifact_routes.readers,
    scheduler_routes.readers,
    scheduler_routes.admins,
    worker_routes.router,
)


def create_app(
    scheduler: Scheduler,
    limits: CallerLimits | None = None,
    owner: str | None = None,
    upkeep: Upkeep | None = None,
) -> FastAPI:
    """Return the application that serves this scheduler, which others start and stop.

    Who shows the token `owner` may do everything, whatever tokens there are.
    Raises RuntimeError if a route does not say who may use it (`access`).
    """
    limits = limits or CallerLimits()
    metrics = Metrics(scheduler, upkeep)
    scheduler.observers.append(metrics.ended)
    tokens = Tokens(scheduler.database, owner=owner)
    app = _Api(
        title="kGymSuite scheduler",
        version="1",
        description="Jobs are pipelines of steps: build a Linux kernel, reproduce a crash on it. "
        "Every error is a problem document (RFC 9457), `application/problem+json`.",
        dependencies=[Depends(known_request)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.scheduler = scheduler
    app.state.metrics = metrics
    app.state.upkeep = upkeep
    app.state.tokens = tokens
    app.state.streams = Streams(limits)
    app.state.volume = SubmittedBytes(limits)
    app.state.quota = Quota(limits, partial(unfinished, scheduler.database))
    install(app)
    for router in _ROUTERS:
        app.include_router(router)
    for_everybody: dict[str, Any] = {"dependencies": [EVERYBODY], "include_in_schema": False}
    app.add_api_route("/healthz", scheduler_routes.healthz, **for_everybody)
    app.add_api_route("/readyz", scheduler_routes.readyz, **for_everybody)
    app.add_api_route(
        "/metrics", _metrics, dependencies=[needs(Scope.READ)], include_in_schema=False
    )
    app.add_api_route("/", _to_docs, **for_everybody)
    app.add_api_route("/docs", _docs, **for_everybody)
    app.add_api_route("/openapi.json", app.described, **for_everybody)
    app.mount("/swagger", PublicFiles(packages=[("fastapi_offline", "static")]))
    app.add_middleware(Express, stops=[job_routes.SUBMISSION, worker_routes.CALLS])
    app.add_middleware(BodyLimit)
    app.add_middleware(Door, tokens=tokens, rates=Rates(limits), open_to_all=open_paths(app.routes))
    app.add_middleware(QueryLimit)
    app.add_middleware(Counted, metrics=metrics)
    return app


class _Api(FastAPI):
    _describing: asyncio.Task[bytes] | None = None

    async def described(self) -> Response:
        """Show the OpenAPI document, made once: it takes a second, and strangers may ask for it."""
        if self._describing is None:
            self._describing = asyncio.create_task(
                asyncio.to_thread(lambda: json.dumps(self.openapi()).encode())
            )
        return Response(await asyncio.shield(self._describing), media_type="application/json")

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the problem document among its schemas."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
            )
            template = "#/components/schemas/{model}"
            named = schema["components"]["schemas"]
            models: list[type[BaseModel]] = [Problem, JobEvent, *EVENTS.values()]
            for model in models:
                described = model.model_json_schema(ref_template=template)
                named |= {**described.pop("$defs", {}), model.__name__: described}
            data = named["JobEvent"]["properties"]["data"]
            data["anyOf"] = [{"$ref": template.format(model=m.__name__)} for m in EVENTS.values()]
            schema["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "kgym_ID_SECRET"}
            }
            schema["security"] = [{}, {"token": []}]
            self.openapi_schema = schema
        return self.openapi_schema


async def _docs() -> HTMLResponse:
    """Show the interface; the page's parts come from a package, not from the Internet."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="kGymSuite scheduler",
        swagger_js_url="/swagger/swagger-ui-bundle.js",
        swagger_css_url="/swagger/swagger-ui.css",
        swagger_favicon_url="/swagger/favicon.png",
    )


async def _metrics(request: Request) -> Response:
    """Show the metrics, as Prometheus reads them."""
    metrics: Metrics = request.app.state.metrics
    return Response(await metrics.text(), media_type=MEDIA_TYPE)


async def _to_docs() -> RedirectResponse:
    return RedirectResponse("/docs")
