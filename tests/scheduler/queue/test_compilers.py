"""Kernels whose compiler no worker can get: refused at submission, with what there is."""

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import JobRequest
from kgym.api.steps import CheckSpec, Patch, StepKind
from kgym.errors import UserError
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import BUILD, Platform, claim_of, job

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
    async with Scheduler(
        platform.store(), platform.bus, platform.storage, host=has("gcc")
    ) as scheduler:
        with pytest.raises(UserError, match="no worker has gcc-9; there are gcc;"):
            await scheduler.submit(built_by("gcc-9"))


@pytest.mark.attack
def test_words_of_any_number_of_compilers_wait_in_few_lanes() -> None:
    words = [f"gcc (mine {one}) 10.{one % 100}.{one // 100}" for one in range(3000)]
    needs = {BUILD.model_copy(update={"compiler": one}).needs().model_dump_json() for one in words}
    assert len(needs) <= 10
