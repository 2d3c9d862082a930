"""Programs that need syzkaller's binaries: refused at submission where no worker has them."""

import asyncio

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import JobRequest
from kgym.api.steps import Reproducer, ReproduceSpec, StepKind, StepRef
from kgym.errors import UserError
from kgym_scheduler.scheduler import HOST_SECONDS, Scheduler
from tests.scheduler.parts import BUILD, WELL, Platform, claim_of, job

pytestmark = pytest.mark.anyio

COMMIT = "3ab38479ab60b50d5b27332bd001c78382877ecd"


def syz(commit: str | None = None) -> JobRequest:
    program = Reproducer(kind="syz", text="getpid()\n", syzkaller=commit)
    return job(BUILD, ReproduceSpec(build=StepRef(step=0), reproducer=program))


def has(*names: str) -> Capabilities:
    return Capabilities(compilers=["gcc"], cores=4, memory=1 << 20, syzkaller=list(names))


async def test_it_is_refused_where_no_worker_has_them(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("poor", 0, capabilities=has()))
    with pytest.raises(UserError, match="no worker has syzkaller's binaries; give") as caught:
        await scheduler.submit(syz())
    assert caught.value.reason == "no_syzkaller"
    assert caught.value.details["errors"] == [
        {"location": "body.steps.1.reproducer", "message": caught.value.message}
    ]


async def test_other_binaries_than_the_programs_do_not_help(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("rich", 0, capabilities=has("default")))
    with pytest.raises(UserError, match=f"of commit {COMMIT}"):
        await scheduler.submit(syz(COMMIT))


async def test_a_worker_of_another_kind_is_not_asked(scheduler: Scheduler) -> None:
    build, both = (StepKind.BUILD,), (StepKind.BUILD, StepKind.REPRODUCE)
    await scheduler.claim(claim_of("builder", 0, build, has("default")))
    await scheduler.claim(claim_of("poor", 0, both, has()))
    with pytest.raises(UserError, match=r"no_syzkaller|syzkaller"):
        await scheduler.submit(syz())


async def test_it_goes_to_the_worker_that_has_them(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("poor", 0, capabilities=has()))
    await scheduler.claim(claim_of("rich", 0, capabilities=has("default", COMMIT)))
    await scheduler.submit(syz(COMMIT))
    (built,) = (await scheduler.claim(claim_of("poor", 1, capabilities=has()))).assignments
    assert await scheduler.finish(built.lease, WELL)
    assert (await scheduler.claim(claim_of("poor", 1, capabilities=has()))).assignments == []
    rich = claim_of("rich", 1, capabilities=has("default", COMMIT))
    assert len((await scheduler.claim(rich)).assignments) == 1


async def test_without_any_worker_it_waits_and_says_for_what(scheduler: Scheduler) -> None:
    await scheduler.submit(syz())
    claim = claim_of("poor", 1, capabilities=has())
    (built,) = (await scheduler.claim(claim)).assignments
    assert await scheduler.finish(built.lease, WELL)
    unmet = {queue.kind: queue.unmet for queue in await scheduler.queues()}
    assert any("syzkaller's binaries" in reason for reason in unmet[StepKind.REPRODUCE])


async def test_the_only_host_is_asked_before_its_workers_live(platform: Platform) -> None:
    found = [has(), has(COMMIT)]

    async def host() -> Capabilities:
        return found.pop(0)

    async with Scheduler(platform.store(), platform.bus, platform.storage, host=host) as scheduler:
        with pytest.raises(UserError, match="syzkaller"):
            await scheduler.submit(syz(COMMIT))
        await asyncio.sleep(HOST_SECONDS)  # meanwhile somebody builds it
        await scheduler.submit(syz(COMMIT))
