"""The monitor's subscription: it says at once that it has broken, and that it is back."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kgym.client import AsyncClient
from kgym_cli.embedded_platform import Platform
from kgym_monitor.live.changes import Changes

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


async def until(happened: Callable[[], object]) -> float:
    """Wait for it; return the seconds that it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() < begun + 60
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


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
