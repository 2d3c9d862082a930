"""Kernels whose compiler no worker can get: refused at submission, with what there is."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import CheckSpec, Patch, StepKind, StepResult
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym.worker.loop import Worker
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import BUILD, WELL, Platform, claim_of, job
from tests.scheduler.test_scheduler import finished

pytestmark = pytest.mark.anyio

SYZBOT = "gcc (GCC) 8.0.1 20180413 (experimental)"


def built_by(compiler: str) -> JobRequest:
    return job(BUILD.model_copy(update={"compiler": compiler}))


def has(*names: str) -> Capabilities:
    return Capabilities(compilers=list(names), cores=4, memory=1 << 20)


async def test_it_is_refused_and_told_which_there_are(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("one", 0, capabilities=has("gcc", "gcc-12")))
    await scheduler.claim(claim_of("two", 0, capabilities=has("gcc", "bullseye/gcc-10")))
    with pytest.raises(UserError, match="no worker has gcc-9; there are bullseye/gcc-10") as caught:
        await scheduler.submit(built_by("gcc-9"))
    assert caught.value.reason == "no_compiler"
    assert "KGYM_ARCHIVES" in caught.value.message
    assert caught.value.details["errors"] == [
        {"location": "body.steps.0.compiler", "message": caught.value.message}
    ]
    with pytest.raises(UserError, match="no worker has gcc-9"):
        await scheduler.submit_all([built_by("gcc"), built_by("gcc-9")])
    assert (await scheduler.queues())[0].queued == 0


async def test_a_name_finds_the_image_and_words_the_nearest(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("one", 0, capabilities=has("gcc", "bullseye/gcc-9")))
    await scheduler.submit(built_by("gcc-9"))
    await scheduler.submit(built_by(SYZBOT))
    claim = claim_of("one", 5, capabilities=has("gcc", "bullseye/gcc-9"))
    assert len((await scheduler.claim(claim)).assignments) == 2


async def test_workers_of_other_kinds_do_not_count(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("one", 0, (StepKind.BUILD,), has("gcc")))
    await scheduler.claim(claim_of("two", 0, (StepKind.CHECK,), has("bullseye/gcc-10")))
    check = CheckSpec(
        source=BUILD.source,
        config=BUILD.config,
        compiler="gcc-10",
        patches=[Patch(diff="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")],
    )
    await scheduler.submit(job(check))
    with pytest.raises(UserError, match="no worker has gcc-10"):
        await scheduler.submit(built_by("gcc-10"))


async def test_without_any_worker_it_waits_and_says_for_what(scheduler: Scheduler) -> None:
    await scheduler.submit(built_by("gcc-9"))
    await scheduler.claim(claim_of("one", 1, capabilities=has("gcc")))
    unmet = {queue.kind: queue.unmet for queue in await scheduler.queues()}
    assert unmet[StepKind.BUILD] == ["none of the 1 live `build` workers has gcc-9"]


async def test_the_only_host_is_asked_before_its_workers_live(platform: Platform) -> None:
    async def host() -> Capabilities:
        return has("gcc")

    async with Scheduler(platform.store(), platform.bus, platform.storage, host=host) as scheduler:
        with pytest.raises(UserError, match="no worker has gcc-9; there are gcc;"):
            await scheduler.submit(built_by("gcc-9"))


async def test_a_worker_tells_what_it_gets_while_it_runs(
    platform: Platform, scheduler: Scheduler, tmp_path: Path
) -> None:
    there, asked = ["gcc"], 0

    async def look() -> Capabilities:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise InfrastructureError("storage_down", "no answer")
        return has(*there)

    async def build(run: StepContext) -> StepResult | None:
        run.log("built")
        return WELL.result

    async def told(compiler: str) -> None:
        async with asyncio.timeout(20):
            while not any(
                one.capabilities and compiler in one.capabilities.compilers
                for one in await scheduler.workers()
            ):
                await asyncio.sleep(0.02)

    handlers = {StepKind.BUILD: build}
    place = platform.bus, platform.storage, handlers, tmp_path / "work"
    worker = Worker(scheduler, *place, capabilities=has("gcc"), look=look, look_seconds=0.1)
    working = asyncio.create_task(worker.serve())
    await told("gcc")
    with pytest.raises(UserError, match="no worker has gcc-9; there are gcc;"):
        await scheduler.submit(built_by("gcc-9"))
    there.append("bullseye/gcc-9")  # another worker has stored the image
    await told("bullseye/gcc-9")
    view, _ = await scheduler.submit(built_by("gcc-9"))
    assert (await finished(scheduler, view.id)).state is State.SUCCEEDED
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.attack
def test_words_of_any_number_of_compilers_wait_in_few_lanes() -> None:
    words = [f"gcc (mine {one}) 10.{one % 100}.{one // 100}" for one in range(3000)]
    needs = {BUILD.model_copy(update={"compiler": one}).needs().model_dump_json() for one in words}
    assert len(needs) <= 10
