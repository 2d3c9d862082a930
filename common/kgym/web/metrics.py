"""Metrics for Prometheus: what every service has, and how they are read."""

import time

from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# How old what was read from the database may be.
FRESH_SECONDS = 3.0
_METHODS = {"GET", "HEAD", "POST", "PUT"}


class Metrics:
    """The metrics of one service, in a registry of their own: its answers, and what it adds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._read_at = -FRESH_SECONDS
        self._requests = Counter(
            "kgym_http_requests", "Answers", ["method", "route", "status"], registry=self.registry
        )
        # Those of them that there are: to look one up by its labels takes ten times as long.
        self._counted: dict[tuple[str, str, int], Counter] = {}

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an answer."""
        key = method, route, status
        if (counter := self._counted.get(key)) is None:
            counter = self._counted[key] = self._requests.labels(*key)
        counter.inc()

    async def read(self) -> None:
        """Set the gauges to what the database holds; called every few seconds at the most."""

    async def text(self) -> bytes:
        """Return all in Prometheus' text format; raise InfrastructureError without a database."""
        now = time.monotonic()
        if now >= self._read_at + FRESH_SECONDS:
            await self.read()
            self._read_at = now
        return generate_latest(self.registry)


class Counted:
    """Counts the answers of the application, by the pattern of the route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the answer when its status is sent."""
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
            # Paths and methods as they come would make as many series as a stranger likes.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.answered(method, route, status)
