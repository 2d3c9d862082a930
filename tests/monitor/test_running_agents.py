"""The overview's card of running agents: which runs go on, and what they have cost."""

from pathlib import Path

import httpx
import pytest

from kgym_cli.platforms.embedded_platform import Platform
from tests.demo.monitored import monitored
from tests.monitor.agent_service import agent_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def overview(url: str) -> str:
    answer = httpx.get(f"{url}/", trust_env=False, timeout=60)
    assert answer.status_code == 200
    return answer.text


def test_the_overview_tells_what_running_agents_cost(tmp_path: Path) -> None:
    with Platform(tmp_path, work=False) as platform:
        with agent_service(tmp_path, platform.url) as agent:
            with monitored(platform.url, agent=agent.url) as url:
                assert "Running agents" in overview(url)
                agent.going.clear()
                run = agent.run()
                try:
                    text = overview(url)
                    assert f'<a href="/runs/{run}">Run {run}</a>' in text
                    assert "so far, 1 run<" in text
                finally:
                    agent.going.set()
                agent.end(run)
                assert f'<a href="/runs/{run}">' not in overview(url)
            away = agent.url
        with monitored(platform.url, agent=away) as url:
            assert "no answer from the agent" in overview(url)
        with monitored(platform.url) as url:
            assert "Running agents" not in overview(url)
