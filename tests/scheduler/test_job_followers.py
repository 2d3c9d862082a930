"""Many who follow jobs: each hears everything once, and together they cost as one."""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest

from kgym.api.jobs import JobEvent
from kgym_scheduler import job_followers as module
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import WELL, Platform, end, events_of, job, take

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


class CountingStore(JobStore):
    """Counts how often it is asked what jobs say."""

    asked = 0

    async def events(self, job_id: int, last: int) -> Any:
        self.asked += 1
        return await super().events(job_id, last)

    async def end(self, job_id: int) -> Any:
        self.asked += 1
        return await super().end(job_id)

    async def last_events(self, job_ids: Iterable[int]) -> dict[int, int]:
        self.asked += 1
        return await super().last_events(job_ids)


async def hear(scheduler: Scheduler, job_id: int, last: int = 0) -> list[JobEvent]:
    return [event async for event in events_of(scheduler, job_id, last)]


class Heard(list[JobEvent]):
    """What one follower hears, as it comes."""

    async def follow(self, scheduler: Scheduler, job_id: int) -> None:
        async for event in events_of(scheduler, job_id):
            self.append(event)


async def all_heard(followers: list[Heard], number: int) -> None:
    """Wait until each follower has heard so many events."""
    async with asyncio.timeout(30):
        while min(map(len, followers)) < number:
            await asyncio.sleep(0.05)


def logs(events: list[JobEvent]) -> list[str]:
    return [event.data["text"] for event in events if event.kind == "log"]


async def test_many_followers_cost_as_many_reads_as_one(platform: Platform) -> None:
    store = CountingStore(platform.url)
    async with Scheduler(store, platform.bus, platform.storage) as scheduler:
        view, _ = await scheduler.submit(job())
        assignment = await take(scheduler)
        heard = [Heard() for _ in range(60)]
        following = [asyncio.create_task(follower.follow(scheduler, view.id)) for follower in heard]
        await all_heard(heard, 2)
        assert store.asked < 20  # a crowd that joins reads once what was said before
        await asyncio.sleep(0.3)
        joined = store.asked
        for number in range(20):
            await scheduler.report(assignment.lease, f"line {number}", None)
            await asyncio.sleep(0.02)
        await scheduler.finish(assignment.lease, WELL)
        await asyncio.gather(*following)
        assert [logs(events) for events in heard] == [[f"line {n}" for n in range(20)]] * 60
        assert store.asked - joined < 40


async def test_followers_of_a_quiet_job_read_nothing(platform: Platform) -> None:
    store = CountingStore(platform.url)
    async with Scheduler(store, platform.bus, platform.storage) as scheduler:
        jobs = [(await scheduler.submit(job()))[0].id for _ in range(5)]
        heard = {n: [Heard() for _ in range(10)] for n in jobs}
        following = [
            asyncio.create_task(follower.follow(scheduler, job_id))
            for job_id, crowd in heard.items()
            for follower in crowd
        ]
        await all_heard([follower for some in heard.values() for follower in some], 1)
        for _ in range(20):  # until all is quiet
            before = store.asked
            await asyncio.sleep(1)
            if store.asked - before <= 3:  # whether another process has written
                break
        else:
            pytest.fail(f"{store.asked - before} reads in a second")
        for job_id in jobs:
            await scheduler.abort(job_id)
        await asyncio.gather(*following)
        ends = {follower[-1].data["state"] for some in heard.values() for follower in some}
        assert ends == {"aborted"}


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_joins_whenever_hears_everything_once_and_in_order(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)  # so that most lag behind
    dice = random.Random(seed)
    view, _ = await scheduler.submit(job())
    assignment = await take(scheduler)

    async def follow(after: int) -> list[JobEvent]:
        heard = []
        async for event in events_of(scheduler, view.id, after):
            heard.append(event)
            await asyncio.sleep(dice.choice([0, 0, 0, 0.01]))
        return heard

    following = []
    for number in range(80):
        await scheduler.report(assignment.lease, f"line {number}", None)
        if dice.random() < 0.3:
            following.append(asyncio.create_task(follow(0)))
    await scheduler.finish(assignment.lease, WELL)
    whole = await hear(scheduler, view.id)
    assert logs(whole) == [f"line {number}" for number in range(80)]
    for task in following:
        assert await task == whole
    for event in dice.choices(whole, k=10):
        assert await hear(scheduler, view.id, event.id) == [e for e in whole if e.id > event.id]


async def test_a_restarted_job_is_followed_to_its_new_end(scheduler: Scheduler) -> None:
    view, _ = await scheduler.submit(job())
    slow = events_of(scheduler, view.id)
    await anext(slow)  # holds on to the job, as a slow client does
    for number in range(5):
        await scheduler.abort(view.id)
        last = (await hear(scheduler, view.id))[-1].id
        await scheduler.restart(view.id)
        following = asyncio.create_task(hear(scheduler, view.id, last))
        await asyncio.sleep(0.01 * number)
        assert not following.done()
        await end(scheduler)
        assert (await following)[-1].data["job_state"] == "succeeded"
        await scheduler.restart(view.id)
    await slow.aclose()


async def test_one_who_asks_for_what_is_still_to_come_waits_for_it(scheduler: Scheduler) -> None:
    view, _ = await scheduler.submit(job())
    following = asyncio.create_task(hear(scheduler, view.id, (1 << 63) - 1))
    await asyncio.sleep(0.2)
    assert not following.done()
    await scheduler.abort(view.id)
    assert await following == []
