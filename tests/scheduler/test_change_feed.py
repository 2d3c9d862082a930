"""The feed of all jobs' changes: whole and in order, whoever commits when."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import make_url

from kgym.api.changes import Change
from kgym.api.jobs import StateEvent
from kgym.api.worker_calls import AttemptEnding
from kgym_scheduler import change_feed
from kgym_scheduler.database import change_log
from kgym_scheduler.queue import known_workers
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.conftest import NewDatabase
from tests.scheduler.parts import (
    REPRODUCED,
    WELL,
    Clock,
    Platform,
    badly,
    claim_of,
    end,
    events_of,
    job,
    reproduce,
    take,
)

pytestmark = pytest.mark.anyio


async def heard(scheduler: Scheduler, after: int | None = None) -> AsyncIterator[Change]:
    """The changes as subscribers get them, read as a client does."""
    async for text in scheduler.changes.follow(after):
        for block in text.decode().strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "data" in fields:
                change = Change.model_validate_json(fields["data"])
                assert fields["event"] == change.kind
                assert fields.get("id", change.cursor) == change.cursor
                yield change


class Subscriber:
    """Hears the feed in a task of its own: changes of jobs, and those of workers apart.

    Those of workers come when the feed looks for them, before or after those of jobs.
    """

    def __init__(self, scheduler: Scheduler, after: int | None = None) -> None:
        self.changes: list[Change] = []
        self.workers: list[Change] = []
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self._hear(scheduler, after))

    async def _hear(self, scheduler: Scheduler, after: int | None) -> None:
        async for change in heard(scheduler, after):
            (self.workers if change.kind == "worker" else self.changes).append(change)
            self._arrived.set()

    async def until(self, number: int) -> list[Change]:
        """Wait until so many changes of jobs are heard besides `begin`."""
        await self._until(lambda: len(self.changes) > number)
        return self.changes[1:]

    async def until_workers(self, number: int) -> list[Change]:
        """Wait until so many changes of workers are heard."""
        await self._until(lambda: len(self.workers) >= number)
        return self.workers

    async def _until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_true():
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def pages(scheduler: Scheduler, after: int, limit: int = 1000) -> list[Change]:
    """All changes after a cursor, page by page."""
    changes: list[Change] = []
    while True:
        page = await scheduler.changes.page(after, limit)
        assert not page.reset
        changes += page.changes
        after = int(page.next)
        if not page.more:
            return changes


async def run(scheduler: Scheduler, *, well: bool = True) -> int:
    """A job that goes to its end."""
    view, _ = await scheduler.submit(job())
    assignment = await take(scheduler)
    await scheduler.report(assignment.lease, "a line\n", None)
    await scheduler.finish(assignment.lease, WELL if well else badly("user"))
    return view.id


def states(changes: Sequence[Change]) -> list[tuple[int | None, str]]:
    return [(change.job, str(change.data.get("state", change.kind))) for change in changes]


async def test_a_subscriber_hears_of_all_jobs(scheduler: Scheduler) -> None:
    subscriber = Subscriber(scheduler)
    await subscriber.until(0)
    assert subscriber.changes[0].kind == "begin"
    first, second = await run(scheduler), await run(scheduler, well=False)
    await scheduler.tag(first, ["seen"])
    changes = await subscriber.until(7)
    assert states(changes) == [
        *((first, state) for state in ("queued", "running", "succeeded")),
        *((second, state) for state in ("queued", "running", "failed")),
        (first, "tags"),
    ]
    assert changes[-1].data == {"tags": ["seen"]}
    assert changes[-2].data["failure"]["reason"] == "broke"
    for change in changes[:-1]:
        StateEvent.model_validate(change.data)
    cursors = [int(change.cursor) for change in changes]
    assert cursors == sorted(set(cursors))
    assert await pages(scheduler, int(subscriber.changes[0].cursor)) == changes
    await subscriber.close()


async def test_the_end_of_a_job_tells_its_outcome(scheduler: Scheduler) -> None:
    begin = int((await scheduler.changes.page(None, 1)).next)
    view, _ = await scheduler.submit(job(reproduce(0, job=await run(scheduler))))
    await end(scheduler, AttemptEnding(result=REPRODUCED))
    shown = await scheduler.job(view.id)
    last = (await pages(scheduler, begin))[-1]
    assert last.data["job_state"] == "succeeded"
    assert last.data["outcome"] == shown.outcome == "not_reproduced"


async def test_a_follower_of_a_job_is_not_told_of_tags(scheduler: Scheduler) -> None:
    view, _ = await scheduler.submit(job())
    await scheduler.tag(view.id, ["seen"])
    await scheduler.abort(view.id)
    assert {event.kind async for event in events_of(scheduler, view.id)} == {"state"}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
async def test_whoever_goes_on_from_a_cursor_misses_nothing(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(change_feed, "KEPT_BYTES", 2000)  # so that some lag behind
    monkeypatch.setattr(change_feed, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(change_log, "AT_ONCE", 7)
    monkeypatch.setattr(change_log, "WINDOW", 11)
    dice = random.Random(seed)
    begin = int((await scheduler.changes.page(None, 1)).next)
    going = [asyncio.create_task(run(scheduler)) for _ in range(15)]
    stored: list[Change] = []

    async def follow_in_pieces() -> list[Change]:
        """Hear three times 15 changes, over a connection that is lost again and again."""
        last, changes = begin, list[Change]()
        while len(changes) < 45:
            left = dice.randint(1, 12)
            async for change in heard(scheduler, last):
                if change.kind == "state":
                    changes.append(change)
                    last, left = int(change.cursor), left - 1
                if not left or len(changes) == 45:
                    break
        return changes

    async with asyncio.timeout(120):
        following = [asyncio.create_task(follow_in_pieces()) for _ in range(4)]
        await asyncio.gather(*going)
        stored = await pages(scheduler, begin, limit=4)
        assert len(stored) == 45
        for task in following:
            assert await task == stored
    for job_id in {change.job for change in stored}:
        own = [change.data["state"] for change in stored if change.job == job_id]
        assert own == ["queued", "running", "succeeded"]


@pytest.mark.thorough
async def test_other_schedulers_changes_are_told(platform: Platform) -> None:
    async with platform.scheduler() as own, platform.scheduler() as other:
        subscriber = Subscriber(own)
        await subscriber.until(0)
        job_id = await run(other)
        assert states(await subscriber.until(3)) == [
            (job_id, state) for state in ("queued", "running", "succeeded")
        ]
        begin, *seen = subscriber.changes
        assert await pages(other, int(begin.cursor)) == seen
        await subscriber.close()


class Other(NamedTuple):
    """Somebody else's transaction beside a scheduler on PostgreSQL that has one job."""

    scheduler: Scheduler
    job: int
    subscriber: Subscriber
    connection: asyncpg.Connection

    async def tag(self) -> int:
        """Write a change of the job; return its number."""
        number: int = await self.connection.fetchval(
            "INSERT INTO events (job_id, kind, at, data) VALUES ($1, 'tags', now(), $2)"
            " RETURNING id",
            self.job,
            json.dumps({"tags": ["late"]}),
        )
        return number


@pytest.fixture
async def other(new_postgresql: NewDatabase, tmp_path: Path, clock: Clock) -> AsyncIterator[Other]:
    platform = Platform(new_postgresql(), tmp_path, clock)
    dsn = make_url(platform.url).set(drivername="postgresql")
    slow = await asyncpg.connect(dsn.render_as_string(hide_password=False))
    async with platform.scheduler() as scheduler:
        first, _ = await scheduler.submit(job())
        subscriber = Subscriber(scheduler)
        await subscriber.until(0)
        yield Other(scheduler, first.id, subscriber, slow)
        await subscriber.close()
    await slow.close()


async def test_what_is_committed_out_of_order_is_told_in_order(other: Other) -> None:
    scheduler, first, subscriber, slow = other
    [begin] = subscriber.changes
    transaction = slow.transaction()
    await transaction.start()
    number = await other.tag()
    later, _ = await scheduler.submit(job())
    page = await scheduler.changes.page(int(begin.cursor), 10)
    assert page.changes == []  # the one with the lower number may yet come
    assert int(page.next) < number
    await transaction.commit()
    changes = await subscriber.until(2)
    assert states(changes) == [(first, "tags"), (later.id, "queued")]
    assert await pages(scheduler, int(page.next)) == changes


async def test_a_transaction_that_is_undone_holds_up_nothing_for_long(other: Other) -> None:
    transaction = other.connection.transaction()
    await transaction.start()
    await other.tag()
    await other.scheduler.abort(other.job)
    await transaction.rollback()
    assert states(await other.subscriber.until(1)) == [(other.job, "aborted")]


async def test_a_cursor_that_is_too_old_or_of_another_database_is_reset(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = int((await scheduler.changes.page(None, 1)).next)
    await run(scheduler)
    end = int((await scheduler.changes.page(None, 1)).next)
    monkeypatch.setattr(change_feed, "OLDEST", 2)
    for cursor in (begin, end + 1000):
        first = await anext(heard(scheduler, cursor))
        assert (first.kind, int(first.cursor)) == ("reset", end)
        page = await scheduler.changes.page(cursor, 10)
        assert (page.reset, page.next, page.changes) == (True, str(end), [])
    assert (await anext(heard(scheduler, end))).kind == "begin"


@pytest.mark.thorough
async def test_workers_come_and_go_in_the_feed(
    scheduler: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "WORKER_SECONDS", 0)
    subscriber = Subscriber(scheduler)
    await subscriber.until(0)
    await asyncio.sleep(1)  # the reader has seen that there is none
    wanted = ["live"]
    await scheduler.claim(claim_of("one"))
    assert [c.data["state"] for c in await subscriber.until_workers(1)] == wanted
    await scheduler.store.drain("one")
    assert [c.data["state"] for c in await subscriber.until_workers(2)] == [*wanted, "draining"]
    clock.advance(known_workers.LIVE.total_seconds() + 1)
    assert [c.data["state"] for c in await subscriber.until_workers(3)][2:] == ["lost"]
    await scheduler.leave("one")
    changes = await subscriber.until_workers(4)
    assert changes[-1].data == {"state": "gone"}
    assert {(change.kind, change.worker) for change in changes} == {("worker", "one")}
    await subscriber.close()


async def test_nobody_reads_when_nobody_is_subscribed(scheduler: Scheduler) -> None:
    subscriber = Subscriber(scheduler)
    await subscriber.until(0)
    tasks = len(asyncio.all_tasks())
    await subscriber.close()
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > tasks - 2:  # subscriber and reader
            await asyncio.sleep(0.05)
    await run(scheduler)
    again = Subscriber(scheduler)
    await again.until(0)
    job_id = await run(scheduler)
    assert states(await again.until(3))[-1] == (job_id, "succeeded")
    await again.close()


async def test_streams_end_when_the_scheduler_stops(platform: Platform) -> None:
    async with platform.scheduler() as scheduler:
        feed = heard(scheduler)
        assert (await anext(feed)).kind == "begin"
        scheduler.hang_up()
        with pytest.raises(Exception, match="the scheduler is stopping"):
            await anext(feed)
