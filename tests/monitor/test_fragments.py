"""What open pages cost, however many look at however many lists."""

import asyncio
import itertools
import time

import pytest

from kgym.client import AsyncClient
from kgym_monitor.live import fragments
from kgym_monitor.live.changes import Changes
from kgym_monitor.live.fragments import Fragments, Key

pytestmark = pytest.mark.anyio
LISTS = [Key("newest", None, f"bug=bug-{number}") for number in range(20)]


async def test_many_summaries_are_rendered_the_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "SUMMARY_SECONDS", 0.02)
    monkeypatch.setattr(fragments, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(fragments, "SUMMARIES_PER_SECOND", 40)
    rendered: list[tuple[Key, float]] = []

    async def render(key: Key) -> str:
        rendered.append((key, time.monotonic()))
        return str(len(rendered))

    async with AsyncClient("http://127.0.0.1:9") as client:
        changes = Changes(client)
        shown = Fragments(changes, render)
        running = asyncio.create_task(shown.run())
        with shown.open(LISTS, changes.position):
            while len(rendered) < 3 * len(LISTS):
                with shown.open(LISTS, changes.position):  # asks for all of them anew
                    await asyncio.sleep(0.02)
        running.cancel()
    rounds = [at for key, at in rendered if key == LISTS[0]]
    assert len(rounds) >= 3
    assert min(after - before for before, after in itertools.pairwise(rounds)) > 0.45
    assert {key for key, _ in rendered[: len(LISTS)]} == set(LISTS)  # the first time at once
