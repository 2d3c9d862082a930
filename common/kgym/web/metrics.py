"""Metrics for Prometheus that every service has."""

import time

from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Maximum age of gauges that are read from the database: several scrapers cost one read.
FRESH_SECONDS = 3.0
_METHODS = {"GET", "HEAD", "POST", "PUT"}


class Metrics:
    """The metrics of one service in a registry of their own; subclasses add more."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._read_at = -FRESH_SECONDS
        self._requests = Counter(
            "kgym_http_requests", "Answers", ["method", "route", "status"], registry=self.registry
        )
        # Counters by their labels: `Counter.labels` takes ten times as long as this lookup.
        self._counted: dict[tuple[str, str, int], Counter] = {}

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a response."""
        key = method, route, status
        if (counter := self._counted.get(key)) is None:
            counter = self._counted[key] = self._requests.labels(*key)
        counter.inc()

    async def read(self) -> None:
        """Set the gauges from the database; called at most once in FRESH_SECONDS."""

    async def text(self) -> bytes:
        """Return the Prometheus text; raise InfrastructureError if the database is away."""
        now = time.monotonic()
        if now >= self._read_at + FRESH_SECONDS:
            await self.read()
            self._read_at = now
        return generate_latest(self.registry)


class Counted:
    """Middleware that counts responses by route pattern."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the response by the status that it starts with."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # With raw paths and methods, strangers could create any number of series.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.answered(method, route, status)
