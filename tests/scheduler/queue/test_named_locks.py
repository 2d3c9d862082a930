"""Names that attempts hold: one at a time, until it has ended."""

import asyncio
import uuid
from datetime import timedelta

import pytest

from kgym.api.worker_calls import Claim
from kgym.web.server import serve
from kgym.worker.http_calls import HttpWorkerCalls
from kgym_scheduler.api.app import create_app
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import WELL, Clock, claim_of, job

pytestmark = pytest.mark.anyio


async def leases(store: JobStore, count: int) -> list[uuid.UUID]:
    """Begin attempts."""
    for _ in range(count):
        await store.submit(job())
    claimed, _ = await store.claim(claim_of("worker", want=count))
    return [taken.lease for taken in claimed.assignments]


async def test_a_name_is_held_by_one_attempt_at_a_time(store: JobStore) -> None:
    first, second, *others = await leases(store, 8)
    assert await store.hold(first, "suitecache/a")
    assert await store.hold(first, "suitecache/a")
    assert not await store.hold(second, "suitecache/a")
    assert await store.hold(second, "suitecache/b")
    assert not await store.hold(uuid.uuid4(), "name")
    held = await asyncio.gather(*(store.hold(lease, "name") for lease in others))
    assert sum(held) == 1


async def test_a_name_is_free_when_its_attempt_has_ended(store: JobStore) -> None:
    first, second, third = await leases(store, 3)
    assert await store.hold(first, "name")
    await store.finish(first, WELL)
    assert await store.hold(second, "name")
    await store.release(second)
    assert await store.hold(third, "name")


async def test_a_name_is_free_when_its_lease_has_run_out(store: JobStore, clock: Clock) -> None:
    (first,) = await leases(store, 1)
    assert await store.hold(first, "name")
    clock.advance(timedelta(minutes=5).total_seconds())
    await store.expire()
    (second,) = await leases(store, 1)
    assert await store.hold(second, "name")
    assert not await store.hold(first, "name")


@pytest.mark.thorough
async def test_workers_hold_names_over_http(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    await scheduler.submit(job())
    async with serve(create_app(scheduler)) as address, HttpWorkerCalls(address.url) as dispatch:
        wish: Claim = claim_of("worker", want=2)
        first, second = (taken.lease for taken in (await dispatch.claim(wish)).assignments)
        assert await dispatch.hold(first, "name")
        assert not await dispatch.hold(second, "name")
        assert not await dispatch.ended(first)
        assert await dispatch.release(first)
        assert await dispatch.ended(first)


async def test_that_an_attempt_has_ended_is_known_of_those_that_there_were(
    store: JobStore, clock: Clock
) -> None:
    done, given_back, lost = held = await leases(store, 3)
    assert not any([await store.ended(lease) for lease in held])
    await store.finish(done, WELL)
    await store.release(given_back)
    assert [await store.ended(lease) for lease in held] == [True, True, False]
    clock.advance(timedelta(minutes=5).total_seconds())
    await store.expire()
    assert await store.ended(lost)
    assert not await store.ended(uuid.uuid4())
