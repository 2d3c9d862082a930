"""What commands ask of an agent, be it in their own process (`runs.agent`) or a service."""

from collections.abc import AsyncIterator
from typing import Protocol

from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import CallView, Event, Limits, RunFilter, RunPage, RunRequest, RunView


class AgentCalls(Protocol):
    """An agent; what it refuses is a KgymError."""

    async def start(self, request: RunRequest, key: str | None = None) -> int:
        """Begin a run; return its number. The same idempotency key begins no second one."""
        ...

    async def resume(self, run: int, limits: Limits | None = None) -> None:
        """Go on with a run that is not under way, perhaps with other limits."""
        ...

    async def stop(self, run: int) -> None:
        """End a run as it is."""
        ...

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return runs, the newest first."""
        ...

    async def show(self, run: int) -> RunView:
        """Return a run as it stands."""
        ...

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle whole."""
        ...

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return the questions of a node, or of the whole run, and their answers."""
        ...

    def follow(self, run: int, after: int = 0) -> AsyncIterator[Event]:
        """Yield what happened after that event, and what happens, until the run ends."""
        ...

    async def patch(self, run: int, number: int = 1, author: str | None = None) -> str:
        """Return a fix as `git am` takes it."""
        ...

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix."""
        ...
