"""State shared by the routes: clients of scheduler and agent, sessions, templates, caches."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import Request

from kgym.bench.publication import BenchmarkStore
from kgym.client import AsyncClient
from kgym.web.request_limits import WrongTokens
from kgym.web.scheduler_tokens import SchedulerTokens
from kgym_monitor.agent_link import AgentLink, FindAgent
from kgym_monitor.benchmarks.board import ReadyPages
from kgym_monitor.benchmarks.held_benchmarks import HeldBenchmarks
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.running_logs import RunningLogs
from kgym_monitor.sessions import Session, Sessions
from kgym_monitor.shared_answers import SharedAnswers
from kgym_monitor.traces.held_traces import HeldTraces


@dataclass(frozen=True, slots=True)
class MonitorState:
    """Shared state; one instance per monitor."""

    scheduler: str
    """URL of the scheduler."""
    client: AsyncClient
    """Client with the monitor's own token, for data that is the same for all readers."""
    tokens: SchedulerTokens
    agent: AgentLink
    """The optional agent service."""
    running_logs: RunningLogs
    benchmarks: HeldBenchmarks
    sessions: Sessions = field(default_factory=Sessions)
    wrong_tokens: WrongTokens = field(default_factory=WrongTokens)
    rendering: Rendering = field(default_factory=Rendering)
    shared: SharedAnswers = field(default_factory=SharedAnswers)
    ready: ReadyPages = field(default_factory=ReadyPages)
    """Contents of benchmarks' pages."""
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Held by each research query, which may take a core for half a minute."""
    traces: HeldTraces = field(default_factory=HeldTraces)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls,
        scheduler: str,
        token: str | None,
        benchmarks: BenchmarkStore,
        find_agent: FindAgent = lambda: None,
    ) -> AsyncIterator["MonitorState"]:
        """Context manager: the state, with connections to scheduler and agent."""
        agent = AgentLink(find_agent, token)
        async with SchedulerTokens(scheduler) as tokens, AsyncClient(scheduler, token) as client:
            state = cls(
                scheduler, client, tokens, agent, RunningLogs(client), HeldBenchmarks(benchmarks)
            )
            try:
                yield state
            finally:
                await state.shared.close()
                await state.benchmarks.close()
                state.running_logs.close()
                await agent.close()
                await state.sessions.close()


def state_of(request: Request) -> MonitorState:
    """Return the shared state."""
    state: MonitorState = request.app.state.monitor
    return state


def session_of(request: Request) -> Session:
    """Return the request's session."""
    session: Session = request.state.session
    return session
