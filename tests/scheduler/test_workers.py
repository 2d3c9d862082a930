"""Workers as processes, and a scheduler that they reach over HTTP: what happens when parts die."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest

from kgym.api.jobs import JobRequest, JobView, Progress
from kgym.api.states import State
from kgym.api.steps import GitSource, StepKind, StepResult
from kgym.web.server import serve
from kgym.worker.attempt import REPORT_SECONDS
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_cli.platforms.servers import free_port
from kgym_scheduler.api.app import create_app
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import BUILD, WELL, Platform, badly, claim_of, events_of, job

pytestmark = pytest.mark.anyio
DATABASE = "postgresql"  # which serves several schedulers

LEASE = 3.0
# Seconds after which what should happen counts as not happening; a `sleep` takes longer.
LIMIT = 40


def doing(what: str) -> JobRequest:
    """A build of which the worker process knows what to do."""
    source = GitSource(url="https://example.org/linux.git", commit=what)
    return job(BUILD.model_copy(update={"source": source}))


@contextlib.asynccontextmanager
async def serving(platform: Platform, port: int, lease: float = LEASE) -> AsyncIterator[Scheduler]:
    """A scheduler that others reach at this port."""
    async with (
        Scheduler(platform.store(lease), platform.bus, platform.storage) as scheduler,
        serve(create_app(scheduler), port=port),
    ):
        yield scheduler


class WorkerProcess:
    """A worker, and what it prints when it begins a step."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def began(self, what: str) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            while not (line := await self._process.stdout.readline()).startswith(what.encode()):
                assert line, f"ended before it began {what}"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(LIMIT):
            await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode


@contextlib.asynccontextmanager
async def worker(port: int, folder: Path, slots: int = 1) -> AsyncIterator[WorkerProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.scheduler.worker_process"),
        *(f"http://127.0.0.1:{port}", str(folder), str(slots)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield WorkerProcess(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def until(scheduler: Scheduler, job_id: int, reached: Callable[[JobView], bool]) -> JobView:
    async with asyncio.timeout(LIMIT):
        while not reached(view := await scheduler.job(job_id)):
            await asyncio.sleep(0.05)
        return view


async def finished(scheduler: Scheduler, job_id: int) -> JobView:
    return await until(scheduler, job_id, lambda view: view.state.final)


async def test_a_lease_that_expires_while_the_worker_still_works(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port) as scheduler, worker(port, tmp_path) as paused:
        view, _ = await scheduler.submit(doing("nap"))
        await paused.began("nap")
        paused.send(signal.SIGSTOP)
        await until(scheduler, view.id, lambda view: view.state is State.QUEUED)
        async with worker(port, tmp_path) as other:
            await other.began("nap")
            paused.send(signal.SIGCONT)
            view = await finished(scheduler, view.id)
        assert (view.state, view.steps[0].attempt) == (State.SUCCEEDED, 2)
        events = [event async for event in events_of(scheduler, view.id)]
    states = [event.data["state"] for event in events if event.kind == "state"]
    assert states == ["queued", "running", "queued", "running", "succeeded"]


async def test_a_result_counts_once_and_not_after_an_abort(platform: Platform, port: int) -> None:
    async with (
        serving(platform, port) as scheduler,
        HttpWorkerCalls(f"http://127.0.0.1:{port}") as dispatch,
    ):
        view, _ = await scheduler.submit(job())
        [assignment] = (await dispatch.claim(claim_of())).assignments
        answers = await asyncio.gather(*(dispatch.finish(assignment.lease, WELL) for _ in range(3)))
        assert answers == [True] * 3
        assert await dispatch.finish(assignment.lease, badly("user"))
        assert (await scheduler.job(view.id)).state is State.SUCCEEDED
        view, _ = await scheduler.submit(job())
        [assignment] = (await dispatch.claim(claim_of())).assignments
        await scheduler.abort(view.id)
        assert not await dispatch.report(assignment.lease, "late\n", None)
        assert not await dispatch.finish(assignment.lease, WELL)
        assert not await dispatch.release(assignment.lease)
        assert (await scheduler.job(view.id)).state is State.ABORTED


class SlowReports(HttpWorkerCalls):
    """Reports take a while to the scheduler; all else is quick."""

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        await asyncio.sleep(1)
        return await super().report(lease, log, progress)


async def test_the_log_is_whole_when_the_result_is_there(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    """Although a report was still under way when the step ended."""

    async def build(run: StepContext) -> StepResult | None:
        run.log("a line")
        await asyncio.sleep(2 * REPORT_SECONDS)
        return WELL.result

    async with (
        serving(platform, port) as scheduler,
        SlowReports(f"http://127.0.0.1:{port}") as dispatch,
    ):
        worker = Worker(
            dispatch, platform.bus, platform.storage, {StepKind.BUILD: build}, tmp_path / "work"
        )
        working = asyncio.create_task(worker.serve())
        view, _ = await scheduler.submit(job())
        assert (await finished(scheduler, view.id)).state is State.SUCCEEDED
        events = [event async for event in events_of(scheduler, view.id)]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert "".join(event.data["text"] for event in events if event.kind == "log") == "a line\n"


async def test_an_abort_reaches_a_worker_that_hears_no_signals_within_two_seconds(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port) as scheduler, worker(port, tmp_path) as process:
        view, _ = await scheduler.submit(doing("sleep"))
        await process.began("sleep")
        await scheduler.abort(view.id)
        after, _ = await scheduler.submit(doing("quick"))
        await process.began("quick")  # the slot has become free, long before a minute is over
        await finished(scheduler, after.id)


async def test_a_result_waits_for_a_scheduler_that_is_away(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with worker(port, tmp_path) as process:
        async with serving(platform, port) as scheduler:
            view, _ = await scheduler.submit(doing("nap"))
            await process.began("nap")
        await asyncio.sleep(LEASE)  # the step ends meanwhile, and its lease runs out
        async with serving(platform, port) as scheduler:
            view = await finished(scheduler, view.id)
    assert (view.state, view.steps[0].attempt) == (State.SUCCEEDED, 1)


async def test_two_schedulers_that_sweep_at_once_expire_a_lease_once(platform: Platform) -> None:
    first, second = platform.store(LEASE), platform.store(LEASE)
    for _ in range(20):
        await first.submit(job())
    claimed, _ = await first.claim(claim_of(want=20))
    platform.clock.advance(LEASE + 1)
    changes = await asyncio.gather(*(store.expire() for store in (first, second, first, second)))
    expired = [changed.job_id for some in changes for changed in some]
    assert sorted(expired) == list(range(1, 21))
    again, _ = await second.claim(claim_of("other", 20))
    assert {assignment.attempt for assignment in again.assignments} == {2}
    assert len(claimed.assignments) == len(again.assignments) == 20
    for store in (first, second):
        await store.close()


async def test_a_poison_job_fails_and_the_others_go_on(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port) as scheduler:
        poison, _ = await scheduler.submit(doing("poison"))
        good, _ = await scheduler.submit(doing("quick"))

        async def supervise() -> None:
            while True:
                async with worker(port, tmp_path) as process:
                    await process.ended()

        supervisor = asyncio.create_task(supervise())
        try:
            assert (await finished(scheduler, good.id)).state is State.SUCCEEDED
            view = await finished(scheduler, poison.id)
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
    failure = view.steps[0].failure
    assert failure is not None
    assert (view.state, view.steps[0].attempt) == (State.FAILED, 3)
    assert (failure.cause, failure.reason) == ("infrastructure", "lease_expired")


async def test_a_drained_worker_finishes_what_it_runs_and_ends(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port) as scheduler, worker(port, tmp_path) as process:
        first, _ = await scheduler.submit(doing("nap"))
        await process.began("nap")
        second, _ = await scheduler.submit(doing("quick"))
        [shown] = await scheduler.store.workers()
        assert (await scheduler.store.drain(shown.id)).state == "draining"
        assert await process.ended() == 0
        assert (await scheduler.job(first.id)).state is State.SUCCEEDED
        assert (await scheduler.job(second.id)).state is State.QUEUED
        assert await scheduler.store.workers() == []


async def test_a_worker_that_is_told_to_stop_gives_its_steps_back_at_once(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    async with serving(platform, port) as scheduler, worker(port, tmp_path, slots=2) as process:
        views = [(await scheduler.submit(doing("sleep")))[0] for _ in range(2)]
        for _ in views:
            await process.began("sleep")
        process.send(signal.SIGTERM)
        for view in views:
            await until(scheduler, view.id, lambda view: view.state is State.QUEUED)
        assert await process.ended() == 0
        assert list(tmp_path.glob("work-*/*")) == []


async def test_a_killed_worker_is_noticed_long_before_its_lease_ends_and_nobody_else_loses_any(
    platform: Platform, port: int, tmp_path: Path
) -> None:
    """One is killed; another is paused, and both it and a third have seen a scheduler go."""
    async with worker(port, tmp_path) as paused, worker(port, tmp_path) as living:
        async with serving(platform, port, 60) as scheduler:
            views = [(await scheduler.submit(doing("sleep")))[0] for _ in range(2)]
            for process in (paused, living):
                await process.began("sleep")
        async with serving(platform, port, 60) as scheduler:
            async with worker(port, tmp_path) as process:
                paused.send(signal.SIGSTOP)
                view, _ = await scheduler.submit(doing("sleep"))
                await process.began("sleep")
                process.send(signal.SIGKILL)
            killed_at = asyncio.get_running_loop().time()
            async with worker(port, tmp_path) as another:
                await another.began("sleep")
            assert asyncio.get_running_loop().time() - killed_at < LIMIT  # of 60
            assert (await scheduler.job(view.id)).steps[0].attempt == 2
            for kept in views:
                [step] = (await scheduler.job(kept.id)).steps
                assert (step.state, step.attempt) == (State.RUNNING, 1)


async def test_a_worker_whose_connection_was_closed_but_that_reports_keeps_its_steps(
    platform: Platform, port: int
) -> None:
    async with (
        serving(platform, port, 60) as scheduler,
        HttpWorkerCalls(f"http://127.0.0.1:{port}") as dispatch,
    ):
        names = ("reports", "silent")
        views = {name: (await scheduler.submit(job()))[0] for name in names}
        leases = {name: (await dispatch.claim(claim_of(name))).assignments[0] for name in names}
        here = [asyncio.create_task(dispatch.stay(name)) for name in names]
        async with asyncio.timeout(LIMIT):
            while not set(scheduler.dead_workers.connected) >= set(names):
                await asyncio.sleep(0.02)
        for task in here:
            task.cancel()
        await asyncio.gather(*here, return_exceptions=True)

        async def queued() -> bool:
            return (await scheduler.job(views["silent"].id)).state is State.QUEUED

        async with asyncio.timeout(LIMIT):
            while not await queued():
                assert await dispatch.report(leases["reports"].lease, "", None)
                await asyncio.sleep(0.2)
        assert await dispatch.finish(leases["reports"].lease, WELL)
        assert (await scheduler.job(views["reports"].id)).steps[0].attempt == 1


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
            events = [event async for event in events_of(places[0], view.id)]
            states = [event.data["state"] for event in events if event.kind == "state"]
            assert states.count("succeeded") == 1
