"""The run of the demo data comes to what its tape is about: a wrong fix, a right one, a review."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.agent.nodes import NodeOutcome
from kgym.api.agent.runs import RunView
from kgym.client.agent_client import AgentClient
from kgym_cli.platforms.embedded_platform import Platform
from tests.demo.demo_agent import demo_agent

pytestmark = pytest.mark.thorough


def test_the_tape_is_played_to_its_end(tmp_path: Path) -> None:
    with (
        Platform(tmp_path, work=False) as platform,
        demo_agent(tmp_path, platform.url, seconds=0) as agent,
    ):
        run = agent.begin_run()
        assert agent.end(run) == "resolved"
        shown = asyncio.run(_shown(agent.url, run))
    assert {node.name: node.outcome for node in shown.nodes} == {
        "t0": NodeOutcome.CRASHED,
        "t0.0": NodeOutcome.RESOLVED,
        "t0.1": NodeOutcome.REJECTED,
        "review": NodeOutcome.RESOLVED,
    }
    assert shown.spent.failed_calls == 0
    assert "WATCH_TYPE__NR" in shown.ranked[0].diff


async def _shown(url: str, run: int) -> RunView:
    async with AgentClient(url) as client:
        return await client.show(run)
