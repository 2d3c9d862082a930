"""The monitor's subscriptions: it says soon that one has broken, and at once that it is back."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kgym.client import AsyncClient
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.live.changes import Changes
from tests.demo.demo_agent import demo_agent
from tests.demo.monitored import monitored
from tests.monitor.silent_network import SilentNetwork

pytestmark = pytest.mark.thorough


async def until(happened: Callable[[], object]) -> float:
    """Wait for it; return the seconds that it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() < begun + 60
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


@pytest.mark.anyio
async def test_a_broken_feed_is_known_at_once_and_is_back_at_once(tmp_path: Path) -> None:
    """Before the client would have given up, which is after 13 seconds."""
    with Platform(tmp_path, work=False) as platform:
        port = int(platform.url.rpartition(":")[2])
        async with AsyncClient(platform.url) as client:
            changes = Changes(client)
            told: list[bool] = []
            changes.listen(lambda news: told.append(news.everything))
            running = asyncio.create_task(changes.run())
            try:
                await until(lambda: changes.connected)
                await asyncio.to_thread(platform.stop)
                broken = await until(lambda: not changes.connected)
                told.clear()
                again = Platform(tmp_path, port=port, work=False)
                await asyncio.to_thread(again.__enter__)
                try:
                    back = await until(lambda: changes.connected)
                finally:
                    await asyncio.to_thread(again.stop)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    assert (broken < 8, back < 8) == (True, True), (broken, back)
    assert told[0], "what was missed has to be read again"


def test_pages_are_stale_soon_where_the_network_falls_silent(tmp_path: Path) -> None:
    """Nothing closes the connections: the scheduler's and the agent's signs of life stay away."""
    with (
        Platform(tmp_path, work=False) as platform,
        demo_agent(tmp_path, platform.url) as agent,
        SilentNetwork(platform.url) as to_scheduler,
        SilentNetwork(agent.url) as to_agent,
        monitored(to_scheduler.url, agent=to_agent.url) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as reader,
    ):
        run = agent.begin_run()
        agent.end(run)
        with (
            reader.stream("GET", _stream(reader, "/workers")) as workers,
            reader.stream("GET", _stream(reader, f"/runs/{run}")) as forest,
        ):
            pages = [one.iter_lines() for one in (workers, forest)]
            for page in pages:
                assert "event: beat" in page
            begun = time.monotonic()
            for network in (to_scheduler, to_agent):
                network.cut()
            for page in pages:
                assert "event: stale" in page
            assert time.monotonic() - begun < 30
            for network in (to_scheduler, to_agent):
                network.mend()
            for page in pages:
                assert "event: beat" in page
            assert time.monotonic() - begun < 60


def _stream(reader: httpx.Client, path: str) -> str:
    """Return from where a page hears of changes."""
    found = re.search(r'hx-sse:connect="([^"]+)"', reader.get(path).raise_for_status().text)
    assert found is not None
    return found[1].replace("&amp;", "&")
