"""Steps that are handed to idle workers as their jobs come: nothing is lost, or done by two."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgym.api.jobs import JobView
from kgym.api.states import State
from kgym.api.steps import BuildResult, StepKind
from kgym.api.worker_calls import Assignment, ConnectedWorker
from kgym.transport.bus import InProcessBus
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_cli.platforms.servers import free_port
from kgym_scheduler import idle_workers
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import BUILT, WELL, Platform, claim_of, job
from tests.scheduler.test_workers import LIMIT, doing, finished, serving, until, worker

pytestmark = pytest.mark.anyio
HOUR = 3600


@pytest.fixture
def url(postgresql_url: str) -> str:
    """Only on PostgreSQL is a step handed out."""
    return postgresql_url


class Idle:
    """A worker by hand: it has claimed, and is connected."""

    def __init__(self) -> None:
        self.steps = asyncio.Queue[Assignment]()

    def step_waits(self) -> None:
        pass

    def handed(self, one: Assignment) -> None:
        self.steps.put_nowait(one)

    def disconnected(self) -> None:
        pass

    async def next(self) -> Assignment:
        async with asyncio.timeout(LIMIT):
            return await self.steps.get()


async def connected(scheduler: Scheduler, number: int = 1) -> None:
    async with asyncio.timeout(LIMIT):
        while len(scheduler.dead_workers.connected) < number:
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def idle(
    scheduler: Scheduler, dispatch: HttpWorkerCalls, want: int = 1
) -> AsyncIterator[Idle]:
    one, claim = Idle(), claim_of("idle", want)
    assert (await dispatch.claim(claim)).assignments == []
    staying = asyncio.create_task(dispatch.stay(claim.worker.id, one))
    try:
        await connected(scheduler)
        yield one
    finally:
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)


@contextlib.asynccontextmanager
async def one_idle(
    platform: Platform, port: int, want: int = 1
) -> AsyncIterator[tuple[Scheduler, HttpWorkerCalls, Idle]]:
    async with (
        serving(platform, port, HOUR) as scheduler,
        HttpWorkerCalls(f"http://127.0.0.1:{port}") as dispatch,
        idle(scheduler, dispatch, want) as one,
    ):
        yield scheduler, dispatch, one


async def states(scheduler: Scheduler, job_id: int) -> list[str]:
    events = [event async for event in scheduler.events(job_id)]
    return [event.data["state"] for event in events if event.kind == "state"]


async def test_a_job_begins_as_it_is_stored(platform: Platform, port: int) -> None:
    async with one_idle(platform, port) as (scheduler, dispatch, worker):
        view, new = await scheduler.submit(job(), "key")
        assert new
        assert (view.state, view.steps[0].worker) == (State.RUNNING, "idle")
        shown = await scheduler.job(view.id)
        assert view == shown.model_copy(update={"last_event": None})
        step = await worker.next()
        assert (step.job_id, step.number, step.attempt) == (view.id, 0, 1)
        assert await dispatch.report(step.lease, "said\n", None)
        again, new = await scheduler.submit(job(), "key")
        assert (again.id, new) == (view.id, False)
        second, _ = await scheduler.submit(job())
        assert second.state is State.QUEUED  # it has one slot
        assert await dispatch.finish(step.lease, WELL)
        assert await states(scheduler, view.id) == ["queued", "running", "succeeded"]
        third, _ = await scheduler.submit(job())
        assert third.state is State.QUEUED  # the second one waits
        [claimed] = (await dispatch.claim(claim_of("idle"))).assignments
        assert claimed.job_id == second.id


async def test_nobody_is_overtaken_who_came_by_another_scheduler(
    platform: Platform, port: int
) -> None:
    async with (
        one_idle(platform, port, want=5) as (scheduler, dispatch, worker),
        Scheduler(platform.store(), InProcessBus(), platform.storage) as other,
    ):
        first, _ = await other.submit(job())
        second, _ = await scheduler.submit(job())
        assert (first.state, second.state) == (State.QUEUED, State.QUEUED)
        claimed = (await dispatch.claim(claim_of("idle", 5))).assignments
        assert [one.job_id for one in claimed] == [first.id, second.id]
        views = [(await one.submit(job()))[0] for one in (scheduler, other)]
        assert [view.state for view in views] == [State.RUNNING, State.QUEUED]
        assert (await worker.next()).job_id == views[0].id


async def test_a_drained_worker_is_handed_nothing(platform: Platform, port: int) -> None:
    async with one_idle(platform, port) as (scheduler, _, worker):
        await scheduler.drain("idle")
        view, _ = await scheduler.submit(job())
        assert view.state is State.QUEUED
        assert worker.steps.empty()


async def test_what_was_aborted_before_it_arrived_is_refused(platform: Platform, port: int) -> None:
    async with one_idle(platform, port) as (scheduler, dispatch, worker):
        view, _ = await scheduler.submit(job())
        await scheduler.abort(view.id)
        step = await worker.next()
        assert not await dispatch.report(step.lease, "", None)
        assert not await dispatch.finish(step.lease, WELL)
        assert (await scheduler.job(view.id)).state is State.ABORTED


async def test_what_was_sent_on_a_lost_connection_is_queued_again(
    platform: Platform, port: int
) -> None:
    async with serving(platform, port, HOUR) as scheduler:
        async with HttpWorkerCalls(f"http://127.0.0.1:{port}") as dispatch:
            async with idle(scheduler, dispatch) as worker:
                view, _ = await scheduler.submit(job())
                step = await worker.next()
            view = await until(scheduler, view.id, lambda view: view.state is State.QUEUED)
            assert not await dispatch.finish(step.lease, WELL)
            [step] = (await dispatch.claim(claim_of("other"))).assignments
            assert await dispatch.finish(step.lease, WELL)
        view = await scheduler.job(view.id)
        assert (view.state, view.steps[0].attempt) == (State.SUCCEEDED, 2)


async def test_a_paused_worker_keeps_no_step_and_when_it_goes_on_does_none_twice(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port, HOUR) as scheduler, worker(port, tmp_path) as paused:
        await connected(scheduler)
        first, _ = await scheduler.submit(doing("quick"))
        await finished(scheduler, first.id)  # it has claimed
        paused.send(signal.SIGSTOP)
        view, _ = await scheduler.submit(doing("nap"))
        async with worker(port, tmp_path) as other:
            await other.began("nap")
            paused.send(signal.SIGCONT)
            await paused.began("nap")  # and hears at once that it is another's
            view = await finished(scheduler, view.id)
        assert (view.state, view.steps[0].attempt) == (State.SUCCEEDED, 2)
        assert await states(scheduler, view.id) == [
            *("queued", "running", "queued", "running", "succeeded")
        ]


async def test_a_worker_that_is_killed_as_it_is_handed_a_step(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port, HOUR) as scheduler, worker(port, tmp_path) as killed:
        await connected(scheduler)
        first, _ = await scheduler.submit(doing("quick"))
        await finished(scheduler, first.id)
        killed.send(signal.SIGSTOP)
        view, _ = await scheduler.submit(doing("quick"))
        assert view.state is State.RUNNING
        killed.send(signal.SIGKILL)
        async with worker(port, tmp_path):
            view = await finished(scheduler, view.id)
        assert (view.state, view.steps[0].attempt) == (State.SUCCEEDED, 2)


class Losing(HttpWorkerCalls):
    """A connection that is lost with the first step that is sent on it."""

    lost: uuid.UUID | None = None

    async def stay(self, worker: str, listener: ConnectedWorker) -> None:
        calls = self

        class Lossy:
            step_waits = staticmethod(listener.step_waits)
            disconnected = staticmethod(listener.disconnected)

            def handed(self, one: Assignment) -> None:
                if calls.lost is not None:
                    listener.handed(one)
                    return
                calls.lost = one.lease
                listener.disconnected()

        await super().stay(worker, Lossy())


@contextlib.asynccontextmanager
async def working(
    dispatch: HttpWorkerCalls, platform: Platform, folder: Path, slots: int
) -> AsyncIterator[None]:
    async def build(run: StepContext) -> BuildResult:
        return BUILT

    handlers = {StepKind.BUILD: build}
    task = asyncio.create_task(
        Worker(dispatch, InProcessBus(), platform.storage, handlers, folder, slots).serve()
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("slots", [1, 5])
async def test_a_worker_gives_back_what_may_have_been_lost_with_its_scheduler(
    platform: Platform, port: int, tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that was killed cannot take it back: only the worker knows."""
    monkeypatch.setattr(idle_workers, "HANDED_SECONDS", HOUR)
    async with (
        serving(platform, port, HOUR) as scheduler,
        Losing(f"http://127.0.0.1:{port}") as dispatch,
        working(dispatch, platform, tmp_path / "work", slots),
    ):
        await connected(scheduler)
        views: list[JobView] = []
        while dispatch.lost is None:
            views.append((await scheduler.submit(job()))[0])
            await asyncio.sleep(0.1)
        done = [await finished(scheduler, view.id) for view in views]
    assert {view.state for view in done} == {State.SUCCEEDED}
    assert max(view.steps[0].attempt for view in done) == 2


async def test_any_number_of_jobs_and_workers_at_two_schedulers(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    """Workers are killed and paused meanwhile; each job ends once, and well."""
    second = free_port()
    async with contextlib.AsyncExitStack() as stack:
        places = [await stack.enter_async_context(serving(platform, at)) for at in (port, second)]
        workers = [
            await stack.enter_async_context(worker(at, tmp_path, slots))
            for at, slots in ((port, 1), (second, 2), (port, 3))
        ]
        views = []
        for number in range(60):
            views.append((await places[number % 2].submit(doing("quick")))[0])
            await asyncio.sleep(0.05)
            if number == 20:
                workers[0].send(signal.SIGKILL)
            if number == 30:
                workers[1].send(signal.SIGSTOP)
            if number == 45:
                workers[1].send(signal.SIGCONT)
        done = [await finished(places[0], view.id) for view in views]
        assert {view.state for view in done} == {State.SUCCEEDED}
        for view in done:
            assert (await states(places[0], view.id)).count("succeeded") == 1
