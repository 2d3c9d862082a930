"""What the routes share: the scheduler, the subscription to it, sessions, templates."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from kgym.client import AsyncClient
from kgym.web.scheduler_tokens import SchedulerTokens
from kgym_monitor.benchmarks.board import ReadyPages
from kgym_monitor.benchmarks.held_benchmarks import HeldBenchmarks
from kgym_monitor.live.agent_link import AgentLink, FindAgent
from kgym_monitor.live.changes import Changes
from kgym_monitor.live.fragments import Fragments
from kgym_monitor.live.job_tails import JobTails
from kgym_monitor.live.live_parts import LiveParts
from kgym_monitor.live.run_feeds import RunFeeds
from kgym_monitor.live.shared_answers import SharedAnswer
from kgym_monitor.live.step_counts import StepCounts
from kgym_monitor.pages import overview
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.sessions import Session, Sessions
from kgym_monitor.traces.held_traces import HeldTraces


@dataclass(frozen=True, slots=True)
class MonitorState:
    """What there is once in a monitor."""

    scheduler: str
    """URL of the scheduler."""
    client: AsyncClient
    """Talks to it with the monitor's own token: for what all pages show alike."""
    tokens: SchedulerTokens
    sessions: Sessions
    changes: Changes
    fragments: Fragments
    tails: JobTails
    rendering: Rendering
    step_counts: StepCounts
    platform: SharedAnswer[dict[str, Any]]
    """What `overview.read` tells."""
    agent: AgentLink
    """The agent service, if there is one."""
    runs: RunFeeds
    benchmarks: HeldBenchmarks
    ready: ReadyPages = field(default_factory=ReadyPages)
    """What pages of benchmarks show."""
    traces: HeldTraces = field(default_factory=HeldTraces)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, scheduler: str, token: str | None, find_agent: FindAgent = lambda: None
    ) -> AsyncIterator["MonitorState"]:
        """Follow the scheduler while the context lasts."""
        rendering, sessions = Rendering(), Sessions()
        agent = AgentLink(find_agent, token)
        runs = RunFeeds(agent, rendering)
        async with SchedulerTokens(scheduler) as tokens, AsyncClient(scheduler, token) as client:
            changes = Changes(client)
            step_counts = StepCounts(client)
            platform = SharedAnswer(changes, lambda: overview.read(client))
            parts = LiveParts(client, agent, rendering, step_counts, platform)
            fragments = Fragments(changes, parts.render)
            tails = JobTails(client, fragments.mark)
            benchmarks = HeldBenchmarks(client)
            tasks = [asyncio.create_task(one.run()) for one in (changes, fragments)]
            try:
                yield cls(
                    scheduler,
                    client,
                    tokens,
                    sessions,
                    changes,
                    fragments,
                    tails,
                    rendering,
                    step_counts,
                    platform,
                    agent,
                    runs,
                    benchmarks,
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await benchmarks.close()
                await tails.close()
                await runs.close()
                await agent.close()
                await sessions.close()

    def hang_up(self) -> None:
        """End the streams of all pages."""
        self.fragments.close()
        self.runs.hang_up()


def state_of(request: Request) -> MonitorState:
    """Return what the routes share."""
    state: MonitorState = request.app.state.monitor
    return state


def session_of(request: Request) -> Session:
    """Return whose page it is."""
    session: Session = request.state.session
    return session
