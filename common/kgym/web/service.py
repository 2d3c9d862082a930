"""The base of all HTTP services: access checks, errors, metrics, OpenAPI."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel

from kgym.web.access import EVERYBODY, PublicFiles, needs, open_paths
from kgym.web.callers import Callers, TokenCheck, Tokens
from kgym.web.metrics import MEDIA_TYPE, Counted, Metrics
from kgym.web.problems import Problem, install
from kgym.web.request_limits import Rates, RequestLimits, SizeLimits, Streams
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute


class Service(FastAPI):
    """An application whose routes have access rules, and whose errors are problem documents.

    It has `/healthz` and `/metrics`. Add all routes, call `guard` once, and run it with
    `kgym.web.server.serve`.
    """

    def __init__(
        self,
        title: str,
        description: str,
        *,
        tokens: Tokens,
        limits: RequestLimits,
        metrics: Metrics,
        models: Sequence[type[BaseModel]] = (),
        hang_up: Callable[[], None] = lambda: None,
        workers: str | None = None,
    ) -> None:
        """`models` are added to the OpenAPI document; for `workers` see `Callers`."""
        super().__init__(
            title=title,
            version="1",
            description=description,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        self.router.route_class = StrictRoute
        self.tokens, self.metrics, self.hang_up = tokens, metrics, hang_up
        self.streams = Streams(limits)
        self.callers = Callers(tokens, Rates(limits), workers)
        self._models: list[type[BaseModel]] = [Problem, *models]
        self._describing: asyncio.Task[bytes] | None = None
        install(self)
        hidden: dict[str, Any] = {"include_in_schema": False}
        self.add_api_route("/healthz", _healthz, dependencies=[EVERYBODY], **hidden)
        self.add_api_route("/metrics", self._metrics, dependencies=[needs(Scope.READ)], **hidden)

    def add_pages(self) -> None:
        """Add the documentation of the interface at `/docs`; `/` redirects there."""
        hidden: dict[str, Any] = {"dependencies": [EVERYBODY], "include_in_schema": False}
        self.add_api_route("/", _to_docs, **hidden)
        self.add_api_route("/docs", self._docs, **hidden)
        self.add_api_route("/openapi.json", self._described, **hidden)
        self.mount("/swagger", PublicFiles(packages=[("fastapi_offline", "static")]))

    def guard(self) -> None:
        """Add the middleware for access checks, limits and metrics; call it after all routes.

        Raises RuntimeError if a route has no access rule (`kgym.web.access`).
        """
        # The last one added runs first: requests are counted even if they are refused.
        self.add_middleware(TokenCheck, callers=self.callers, open_to_all=open_paths(self.routes))
        self.add_middleware(SizeLimits)
        self.add_middleware(Counted, metrics=self.metrics)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the problem document among its schemas."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
            )
            named = schema["components"]["schemas"]
            for model in self._models:
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                named |= {**described.pop("$defs", {}), model.__name__: described}
            schema["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "kgym_ID_SECRET"}
            }
            schema["security"] = [{}, {"token": []}]
            self.openapi_schema = schema
        return self.openapi_schema

    async def _described(self) -> Response:
        """Return the OpenAPI document."""
        # Made once, in a thread: it takes a second, and needs no token.
        if self._describing is None:
            self._describing = asyncio.create_task(
                asyncio.to_thread(lambda: json.dumps(self.openapi()).encode())
            )
        return Response(await asyncio.shield(self._describing), media_type="application/json")

    async def _docs(self) -> HTMLResponse:
        """Return Swagger UI, with scripts from a package, not from the Internet."""
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=self.title,
            swagger_js_url="/swagger/swagger-ui-bundle.js",
            swagger_css_url="/swagger/swagger-ui.css",
            swagger_favicon_url="/swagger/favicon.png",
        )

    async def _metrics(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(await self.metrics.text(), media_type=MEDIA_TYPE)


async def _healthz() -> dict[str, str]:
    """Answer that the process is alive."""
    return {"status": "ok"}


async def _to_docs() -> RedirectResponse:
    return RedirectResponse("/docs")
