"""Scheduler, bus and real workers together; the handlers are what a user's would be."""

import asyncio
import contextlib
import errno
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kgym.api.jobs import JobEvent, JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import BuildResult, ReproduceResult, StepKind, StepResult
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.transport.bus import InProcessBus
from kgym.worker.context import Handler, StepContext
from kgym_scheduler.queue import known_workers
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler import parts

pytestmark = pytest.mark.anyio


async def build(run: StepContext) -> BuildResult:
    run.log(f"building job {run.assignment.job_id}")
    return parts.BUILT


async def finished(scheduler: Scheduler, job_id: int) -> JobView:
    async with asyncio.timeout(30):
        async for _ in scheduler.follow(job_id):
            pass
    return await scheduler.job(job_id)


async def run(scheduler: Scheduler, request: JobRequest) -> JobView:
    view, _ = await scheduler.submit(request)
    return await finished(scheduler, view.id)


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.01)


async def test_a_pipeline_runs_in_order_with_the_results_of_earlier_steps(
    platform: parts.Platform, scheduler: Scheduler
) -> None:
    order: list[int] = []

    async def kernel(step: StepContext) -> BuildResult:
        order.append(step.assignment.number)
        return parts.BUILT

    async def guest(step: StepContext) -> ReproduceResult:
        order.append(step.assignment.number)
        assert step.assignment.inputs["build"].result == parts.BUILT
        return parts.REPRODUCED

    handlers: dict[StepKind, Handler] = {StepKind.BUILD: kernel, StepKind.REPRODUCE: guest}
    async with platform.worker(scheduler, handlers, slots=4):
        view = await run(
            scheduler, parts.job(parts.BUILD, parts.reproduce(0), parts.BUILD, parts.reproduce(2))
        )
    assert view.state is State.SUCCEEDED
    assert order == [0, 1, 2, 3]


async def test_a_users_error_fails_the_job_at_once(
    platform: parts.Platform, scheduler: Scheduler
) -> None:
    async def kernel(step: StepContext) -> BuildResult:
        raise UserError("patch_failed", "hunk 1 does not apply", file="a.c")

    async with platform.worker(scheduler, {StepKind.BUILD: kernel}):
        view = await run(scheduler, parts.job(parts.BUILD, parts.BUILD))
    assert [step.state for step in view.steps] == [State.FAILED, State.SKIPPED]
    failure = view.steps[0].failure
    assert failure is not None
    assert (failure.reason, failure.details) == ("patch_failed", {"file": "a.c"})


FULL = "tar: a.c: Cannot write: No space left on device"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/proc/none"), "on /proc: over"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
        (InfrastructureError("disk_full", f"`tar -x` ended with status 2: {FULL}"), FULL),
        (InfrastructureError("disk_full", "cannot copy it: the disk is full"), "cannot copy it"),
        (InfrastructureError("storage_failed", f"the scheduler: {FULL}"), None),
        (InfrastructureError("disk_full", "a VM may write 8,192 MiB"), None),
        (UserError("source_unreadable", FULL), None),
    ],
)
async def test_a_full_disk_is_reported_with_what_is_needed_and_free(
    platform: parts.Platform, scheduler: Scheduler, error: Exception, words: str | None
) -> None:
    async def kernel(step: StepContext) -> BuildResult:
        try:
            raise error
        except OSError as first:
            raise InfrastructureError("copy_failed", "cannot copy") from first

    async with platform.worker(scheduler, {StepKind.BUILD: kernel}):
        view, _ = await scheduler.submit(parts.job())
        async with asyncio.timeout(30):
            while (failure := (await scheduler.job(view.id)).steps[0].failure) is None:
                await asyncio.sleep(0.01)
    if words is None:
        assert isinstance(error, KgymError)
        assert (failure.reason, failure.message) == (error.reason, error.message)
    else:
        assert failure.reason == "disk_full"
        sizes = r"no space left on /\S*: over [\d,]+ MiB needed, [\d,]+ MiB and"
        assert re.match(sizes, failure.message)
        assert words in failure.message


async def test_an_abort_cancels_the_running_handler_within_two_seconds(
    platform: parts.Platform, scheduler: Scheduler
) -> None:
    events: list[str] = []

    async def kernel(step: StepContext) -> BuildResult:
        events.append("began")
        try:
            await asyncio.sleep(60)
        finally:
            events.append("cancelled")
        return parts.BUILT

    async with platform.worker(scheduler, {StepKind.BUILD: kernel}):
        view, _ = await scheduler.submit(parts.job())
        await until(lambda: events)
        began = time.monotonic()
        aborted = await scheduler.abort(view.id)
        await until(lambda: "cancelled" in events)
        assert time.monotonic() - began < 10  # 2 where nothing else runs
        assert aborted.state is State.ABORTED
        # the worker's slot is free again
        second, _ = await scheduler.submit(parts.job())
        await until(lambda: events.count("began") == 2)
        await scheduler.abort(second.id)


class LossyBus(InProcessBus):
    """Loses the first notification."""

    lost = False

    async def publish(self, kind: StepKind) -> None:
        if self.lost:
            await super().publish(kind)
        self.lost = True


class StutteringBus(InProcessBus):
    """Delivers every notification twice."""

    async def publish(self, kind: StepKind) -> None:
        await super().publish(kind)
        await super().publish(kind)


@pytest.mark.thorough
async def test_a_lost_bell_costs_a_second(platform: parts.Platform) -> None:
    platform.bus = LossyBus()
    async with (
        platform.scheduler() as scheduler,
        platform.worker(scheduler, {StepKind.BUILD: build}),
    ):
        began = time.monotonic()
        assert (await run(scheduler, parts.job())).state is State.SUCCEEDED
        assert time.monotonic() - began < 10  # 2 where nothing else runs


@pytest.mark.thorough
async def test_a_doubled_bell_runs_the_step_once(platform: parts.Platform) -> None:
    platform.bus = StutteringBus()
    runs: list[int] = []

    async def kernel(step: StepContext) -> StepResult:
        runs.append(step.assignment.step_id)
        await asyncio.sleep(0.05)
        return parts.BUILT

    async with (
        platform.scheduler() as scheduler,
        platform.worker(scheduler, {StepKind.BUILD: kernel}, slots=4),
    ):
        views = await asyncio.gather(*(scheduler.submit(parts.job()) for _ in range(5)))
        for view, _ in views:
            assert (await finished(scheduler, view.id)).state is State.SUCCEEDED
    assert len(runs) == len(set(runs)) == 5


@pytest.mark.thorough
async def test_a_worker_that_vanished_is_replaced(
    platform: parts.Platform, scheduler: Scheduler, clock: parts.Clock
) -> None:
    view, _ = await scheduler.submit(parts.job())
    [stale] = (await scheduler.claim(parts.claim_of("vanished"))).assignments
    await scheduler.stop()
    platform.bus = InProcessBus()
    async with (
        platform.scheduler(alone=True) as again,
        platform.worker(again, {StepKind.BUILD: build}),
    ):
        after = await finished(again, view.id)
        assert (after.state, after.steps[0].attempt) == (State.SUCCEEDED, 2)
        assert not await again.finish(stale.lease, parts.WELL)


CHILD = """
import asyncio, sys
from pathlib import Path
from kgym.api.steps import StepKind
from tests.scheduler.parts import BUILT, Clock, Platform, job

async def build(run):
    if run.assignment.job_id > 1:
        print("running", flush=True)
        await asyncio.sleep(60)
    return BUILT

async def main():
    platform = Platform(sys.argv[1], Path(sys.argv[2]), Clock())
    async with platform.scheduler() as scheduler:
        for _ in range(3):
            await scheduler.submit(job())
        async with platform.worker(scheduler, {StepKind.BUILD: build}):
            await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def child(url: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", CHILD, url, str(folder)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.thorough
async def test_a_new_process_goes_on_where_a_killed_one_was(
    platform: parts.Platform, tmp_path: Path
) -> None:
    async with child(platform.url, tmp_path) as process:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            while await process.stdout.readline() != b"running\n":
                assert not process.stdout.at_eof()
        process.send_signal(signal.SIGKILL)
    async with (
        platform.scheduler(alone=True) as scheduler,
        platform.worker(scheduler, {StepKind.BUILD: build}),
    ):
        views = [await finished(scheduler, number) for number in (1, 2, 3)]
    assert [view.state for view in views] == [State.SUCCEEDED] * 3
    assert [view.steps[0].attempt for view in views] == [1, 2, 1]


async def test_watchers_hear_at_once_what_happens_in_this_process(
    platform: parts.Platform, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks for news: what is heard was told.
    monkeypatch.setattr("kgym_scheduler.job_followers.POLL_SECONDS", 3600.0)
    view, _ = await scheduler.submit(parts.job())
    heard: list[JobEvent] = []

    async def watch() -> None:
        async for events in scheduler.follow(view.id):
            heard.extend(streamed.event for streamed in events)

    watcher = asyncio.create_task(watch())
    await until(lambda: heard)
    assert (await scheduler.claim(parts.claim_of())).assignments
    await until(lambda: len(heard) > 1)
    await scheduler.abort(view.id)
    await watcher
    assert [event.data["job_state"] for event in heard] == ["queued", "running", "aborted"]


@pytest.mark.thorough
async def test_watchers_hear_of_what_another_process_does(
    platform: parts.Platform, scheduler: Scheduler
) -> None:
    view, _ = await scheduler.submit(parts.job())
    other = platform.store()
    watcher = asyncio.create_task(finished(scheduler, view.id))
    await asyncio.sleep(0.05)
    await other.abort(view.id)
    await other.close()
    assert (await watcher).state is State.ABORTED


async def test_workers_are_known_as_they_say_and_by_what_they_run(
    platform: parts.Platform, scheduler: Scheduler
) -> None:
    await scheduler.submit(parts.job())
    await scheduler.claim(parts.claim_of("one"))
    await scheduler.claim(parts.claim_of("two", 3, [StepKind.REPRODUCE]))
    busy, idle = await scheduler.store.workers()
    assert (busy.id, busy.state, busy.running[0].job) == ("one", "live", 1)
    assert (idle.id, idle.slots, idle.kinds, idle.running) == ("two", 3, [StepKind.REPRODUCE], [])


async def test_a_worker_that_is_not_heard_of_is_lost(
    scheduler: Scheduler, clock: parts.Clock
) -> None:
    await scheduler.claim(parts.claim_of("one"))
    clock.advance(known_workers.LIVE.total_seconds() + 1)
    assert [worker.state for worker in await scheduler.store.workers()] == ["lost"]
    await scheduler.leave("one")
    assert await scheduler.store.workers() == []
