"""The interface of an agent, in the same process (`runs.agent`) or in a service."""

from collections.abc import AsyncIterator
from typing import Protocol

from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import CallView, Event, Limits, RunFilter, RunPage, RunRequest, RunView


class AgentCalls(Protocol):
    """An agent; it raises KgymErrors."""

    async def start(self, request: RunRequest, key: str | None = None) -> int:
        """Start a run; return its number. An idempotency key starts at most one run."""

    async def resume(self, run: int, limits: Limits | None = None) -> None:
        """Resume a run that is not active, optionally with other limits."""

    async def stop(self, run: int) -> None:
        """Stop a run."""

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return runs, the newest first."""

    async def show(self, run: int) -> RunView:
        """Return a run."""

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle with all details."""

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return questions and answers of a node, or of the whole run."""

    def follow(self, run: int, after: int = 0) -> AsyncIterator[Event]:
        """Yield events after that one, past and future, until the run ends."""

    async def patch(self, run: int, number: int = 1, author: str | None = None) -> str:
        """Return a fix as input of `git am`."""

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix."""
