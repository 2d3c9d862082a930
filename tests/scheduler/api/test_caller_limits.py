"""What one caller may ask for."""

import asyncio
import contextlib
import time

import pytest

from kgym.api.jobs import JobFilter
from kgym.client import AsyncClient, Client, Refused
from kgym.errors import TooMany
from kgym.web import request_limits
from kgym.web.request_limits import Rates
from kgym_scheduler.api import caller_limits
from kgym_scheduler.api.caller_limits import CallerLimits, SubmittedBytes
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import JOB, problem
from tests.scheduler.parts import job, served

pytestmark = pytest.mark.anyio
DATABASE = "sqlite"


# --- requests a second ----------------------------------------------------------------------


class Watch:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def accepted(rates: Rates, caller: str, requests: int) -> int:
    """How many of so many requests at once are let through."""
    count = 0
    for _ in range(requests):
        with contextlib.suppress(TooMany):
            rates.take(caller)
            count += 1
    return count


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    watch = Watch()
    rates = Rates(CallerLimits(requests_per_second=10, burst=5), watch)
    assert accepted(rates, "alice", 20) == 5
    watch.now += 0.25
    assert accepted(rates, "alice", 20) == 2
    watch.now += 100
    assert accepted(rates, "alice", 20) == 5


def test_callers_have_buckets_of_their_own() -> None:
    rates = Rates(CallerLimits(requests_per_second=1, burst=3), Watch())
    assert [accepted(rates, name, 9) for name in ("alice", "bob", "alice")] == [3, 3, 0]


def test_callers_that_are_quiet_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "_CALLERS", 10)
    watch = Watch()
    rates = Rates(CallerLimits(requests_per_second=1, burst=1), watch)
    for number in range(1000):
        watch.now += 0.5
        rates.take(f"address {number}")
    assert len(rates.buckets._full_at) <= 10


async def test_too_many_requests_are_told_when_to_come_again(scheduler: Scheduler) -> None:
    async with served(scheduler, CallerLimits(requests_per_second=0.1, burst=4)) as http:
        answers = [await http.get("/v1/jobs") for _ in range(6)]
        assert [answer.status_code for answer in answers[:4]] == [200] * 4
        document = problem(answers[-1], 429, "too_many_requests")
        assert answers[-1].headers["retry-after"] == str(document["retry_after"])
        assert 1 <= document["retry_after"] <= 10
        assert (await http.get("/v1/healthz")).status_code == 200


@pytest.mark.thorough
async def test_clients_wait_as_they_are_told(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    await scheduler.abort(1)
    async with served(scheduler, CallerLimits(requests_per_second=4, burst=2)) as http:
        began = time.monotonic()
        async with AsyncClient(str(http.base_url)) as client:
            for _ in range(4):
                await client.job(1)
            assert len([event async for event in client.events(1)]) == 2
        assert time.monotonic() - began >= 1

        def blocking() -> int:
            with Client(str(http.base_url)) as client:
                jobs = [client.job(1) for _ in range(4)]
                return len(jobs) + len(list(client.events(1)))

        assert await asyncio.to_thread(blocking) == 6


@pytest.mark.parametrize("with_token", [True, False])
async def test_workers_are_not_held_up(scheduler: Scheduler, *, with_token: bool) -> None:
    tokens = Tokens(scheduler.store.database)
    token = await tokens.create("w", ["worker"]) if with_token else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with served(scheduler, CallerLimits(requests_per_second=1, burst=1)) as http:
        for _ in range(5):
            await http.get("/v1/jobs", headers=headers)  # who is held up, here
            answer = await http.post("/v1/worker/calls", json={"calls": []}, headers=headers)
            assert answer.status_code != 429


async def test_strangers_are_held_up_before_their_tokens_are_looked_at(
    scheduler: Scheduler,
) -> None:
    await Tokens(scheduler.store.database).create("alice", ["read"])
    async with served(scheduler, CallerLimits(requests_per_second=1, burst=3)) as http:
        answers = [await http.get("/v1/jobs") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2


# --- bytes ----------------------------------------------------------------------------------


def test_the_bytes_of_a_submitters_jobs_are_bounded_by_a_pause_and_a_rate() -> None:
    watch = Watch()
    volume = SubmittedBytes(CallerLimits(bytes_per_second=10, bytes_at_once=1000), watch)
    volume.take("alice", 600)
    with pytest.raises(TooMany) as refused:
        volume.take("alice", 600)
    assert refused.value.details["retry_after"] == 20
    volume.take("alice", 400)
    volume.take("bob", 1000)
    watch.now += 20
    volume.take("alice", 200)


@pytest.mark.thorough
async def test_a_submitter_of_too_many_bytes_is_told_when_to_come_again(
    scheduler: Scheduler,
) -> None:
    tokens = Tokens(scheduler.store.database)
    alice, root = [
        {"Authorization": f"Bearer {await tokens.create(name, [scope])}"}
        for name, scope in (("alice", "submit"), ("root", "admin"))
    ]
    async with served(scheduler, CallerLimits(bytes_per_second=1, bytes_at_once=1000)) as http:
        answers = [await http.post("/v1/jobs", json=JOB, headers=alice) for _ in range(9)]
        assert answers[0].status_code == 201
        problem(answers[-1], 429, "too_many_bytes")
        assert int(answers[-1].headers["retry-after"]) > 0
        taken = sum(answer.status_code == 201 for answer in answers)
        assert taken * len(answers[0].request.content) <= 1000
        for _ in range(9):
            assert (await http.post("/v1/jobs", json=JOB, headers=root)).status_code == 201


@pytest.mark.thorough
async def test_what_is_for_everybody_is_not_for_any_number_of_requests(
    scheduler: Scheduler,
) -> None:
    async with served(scheduler, CallerLimits(requests_per_second=0.1, burst=3)) as http:
        answers = [await http.get("/openapi.json") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2


# --- event streams --------------------------------------------------------------------------


@pytest.mark.thorough
async def test_event_streams_are_limited_and_counted_only_while_open(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    async with served(scheduler, CallerLimits(streams=2)) as http:
        async with contextlib.AsyncExitStack() as opened:
            lines = []
            for _ in range(2):
                stream = http.stream("GET", "/v1/jobs/1/events")
                response = await opened.enter_async_context(stream)
                lines.append(response.aiter_lines())
                await anext(lines[-1])
            problem(await http.get("/v1/jobs/1/events"), 429, "too_many_streams")
        async with asyncio.timeout(10):
            while True:
                async with http.stream("GET", "/v1/jobs/1/events") as response:
                    if response.status_code == 200:
                        break
                await asyncio.sleep(0.1)


# --- unfinished jobs ------------------------------------------------------------------------


async def test_a_submitter_has_a_limit_of_unfinished_jobs(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(scheduler.store.database)
    alice, bob = [
        {"Authorization": f"Bearer {await tokens.create(name, ['submit'])}"}
        for name in ("alice", "bob")
    ]
    async with served(scheduler, CallerLimits(unfinished_jobs=3)) as http:
        for _ in range(3):
            assert (await http.post("/v1/jobs", json=JOB, headers=alice)).status_code == 201
        refused = await http.post("/v1/jobs", json=JOB, headers=alice)
        problem(refused, 429, "too_many_jobs")
        assert "retry-after" not in refused.headers
        assert (await http.post("/v1/jobs", json=JOB, headers=bob)).status_code == 201
        await scheduler.abort(1)
        monkeypatch.setattr(caller_limits, "COUNT_SECONDS", 0.0)
        assert (await http.post("/v1/jobs", json=JOB, headers=alice)).status_code == 201
        problem(await http.post("/v1/jobs", json=JOB, headers=alice), 429, "too_many_jobs")


async def test_a_client_does_not_wait_for_a_limit_that_waiting_does_not_lift(
    scheduler: Scheduler,
) -> None:
    async with (
        served(scheduler, CallerLimits(unfinished_jobs=0)) as http,
        AsyncClient(str(http.base_url)) as client,
    ):
        with pytest.raises(Refused, match="0 unfinished jobs; the limit is 0"):
            await client.submit(job())
        assert (await client.page(JobFilter())).jobs == []
