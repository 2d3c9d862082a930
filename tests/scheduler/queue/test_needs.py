"""Steps that no worker can run are refused at submission, and tell what is missing."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import CheckSpec, Patch, Reproducer, StepKind, StepResult
from kgym.api.worker_calls import WorkerInfo
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym.worker.loop import Worker
from kgym_scheduler.queue import known_workers
from kgym_scheduler.queue.known_workers import NeedsCheck
from kgym_scheduler.scheduler import Scheduler
from tests.refused import refused
from tests.scheduler.parts import BUILD, WELL, Platform, claim_of, job, reproduce
from tests.scheduler.test_scheduler import finished

pytestmark = pytest.mark.anyio

SYZBOT = "gcc (GCC) 8.0.1 20180413 (experimental)"
COMMIT = "3ab38479ab60b50d5b27332bd001c78382877ecd"
BOTH = (StepKind.BUILD, StepKind.REPRODUCE)
CLOUD, HERE = Capabilities(dumps=["kdump"]), Capabilities()


def built_by(compiler: str) -> JobRequest:
    return job(BUILD.model_copy(update={"compiler": compiler}))


def syz(commit: str | None = None) -> JobRequest:
    program = Reproducer(kind="syz", text="getpid()\n", syzkaller=commit)
    return job(BUILD, reproduce(0).model_copy(update={"reproducer": program}))


def has(*compilers: str, syzkaller: tuple[str, ...] = ()) -> Capabilities:
    names = list(compilers or ("gcc",))
    return Capabilities(compilers=names, cores=4, memory=1 << 20, syzkaller=list(syzkaller))


POOR, RICH = has(), has(syzkaller=("default",))
GCC_10 = has("gcc", "bullseye/gcc-10")
IMAGE = "no worker has gcc-9; there are bullseye/gcc-10.*KGYM_ARCHIVES"
BINARIES = "no worker has syzkaller's binaries; "
REFUSED = [
    ([("one", BOTH, has("gcc-12")), ("two", BOTH, GCC_10)], built_by("gcc-9"), IMAGE),
    ([("one", BOTH[:1], POOR), ("two", (StepKind.CHECK,), GCC_10)], built_by("gcc-10"), "gcc-10"),
    ([("poor", BOTH, POOR)], syz(), BINARIES),
    ([("rich", BOTH, RICH)], syz(COMMIT), f"of commit {COMMIT}"),
    ([("builder", BOTH[:1], RICH), ("poor", BOTH, POOR)], syz(), BINARIES),
]


@pytest.mark.parametrize(("workers", "request_", "words"), REFUSED)
async def test_it_is_refused_and_told_what_there_is(
    scheduler: Scheduler,
    workers: list[tuple[str, tuple[StepKind, ...], Capabilities]],
    request_: JobRequest,
    words: str,
) -> None:
    for name, kinds, capabilities in workers:
        await scheduler.claim(claim_of(name, 0, kinds, capabilities))
    with pytest.raises(UserError, match=words) as caught:
        await scheduler.submit(request_)
    runs = len(request_.steps) > 1
    assert caught.value.reason == ("no_syzkaller" if runs else "no_compiler")
    location = "body.steps.1.reproducer" if runs else "body.steps.0.compiler"
    error = {"location": location, "message": caught.value.message}
    assert caught.value.details["errors"] == [error]
    with pytest.raises(UserError, match=words):
        await scheduler.submit_all([job(), request_])
    assert (await scheduler.store.queues())[0].queued == 0


@pytest.mark.parametrize(
    ("live", "is_refused"),
    [([CLOUD, CLOUD], True), ([], False), ([CLOUD, HERE], False), ([CLOUD, None], False)],
)
async def test_a_dump_from_outside_is_refused_if_all_vms_are_in_a_cloud(
    live: list[Capabilities | None], is_refused: bool
) -> None:
    async def workers() -> list[WorkerInfo]:
        kinds = [StepKind.REPRODUCE]
        return [WorkerInfo(id="w", kinds=kinds, slots=1, capabilities=has) for has in live]

    check = NeedsCheck(workers, None)
    await check.check([job(reproduce(0, 1))])
    dumped = job(reproduce(0, 1).model_copy(update={"dump": "hypervisor"}))
    if not is_refused:
        await check.check([dumped])
        return
    with refused("no_dump_method", "kdump", UserError):
        await check.check([dumped])


async def test_the_workers_are_read_rarely_but_anew_before_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_workers, "LIVE_SECONDS", 3600.0)
    live, reads = [CLOUD], 0

    async def workers() -> list[WorkerInfo]:
        nonlocal reads
        reads += 1
        kinds = [StepKind.REPRODUCE]
        return [WorkerInfo(id="w", kinds=kinds, slots=1, capabilities=has) for has in live]

    check = NeedsCheck(workers, None)
    dumped = job(reproduce(0, 1).model_copy(update={"dump": "hypervisor"}))
    with refused("no_dump_method", "kdump", UserError):
        await check.check([dumped])
    live = [CLOUD, HERE]  # another worker comes
    await check.check([dumped])
    before = reads
    for _ in range(3):
        await check.check([dumped])
    assert reads == before


async def test_a_name_finds_the_image_and_words_the_nearest(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("one", 0, capabilities=has("gcc", "bullseye/gcc-9")))
    await scheduler.submit(built_by("gcc-9"))
    await scheduler.submit(built_by(SYZBOT))
    claim = claim_of("one", 5, capabilities=has("gcc", "bullseye/gcc-9"))
    assert len((await scheduler.claim(claim)).assignments) == 2


async def test_workers_of_another_kind_are_asked_for_their_kind(scheduler: Scheduler) -> None:
    await scheduler.claim(claim_of("two", 0, (StepKind.CHECK,), has("bullseye/gcc-10")))
    check = CheckSpec(
        source=BUILD.source,
        config=BUILD.config,
        compiler="gcc-10",
        patches=[Patch(diff="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")],
    )
    await scheduler.submit(job(check))


async def test_binaries_are_used_by_the_worker_that_has_them(scheduler: Scheduler) -> None:
    poor, rich = has(), has(syzkaller=("default", COMMIT))
    await scheduler.claim(claim_of("poor", 0, capabilities=poor))
    await scheduler.claim(claim_of("rich", 0, capabilities=rich))
    await scheduler.submit(syz(COMMIT))
    (built,) = (await scheduler.claim(claim_of("poor", 1, capabilities=poor))).assignments
    assert await scheduler.finish(built.lease, WELL)
    assert (await scheduler.claim(claim_of("poor", 1, capabilities=poor))).assignments == []
    assert len((await scheduler.claim(claim_of("rich", 1, capabilities=rich))).assignments) == 1


async def test_without_any_worker_it_waits_and_says_for_what(scheduler: Scheduler) -> None:
    await scheduler.submit(syz())
    (built,) = (await scheduler.claim(claim_of("poor", 1, capabilities=has()))).assignments
    assert await scheduler.finish(built.lease, WELL)
    await scheduler.store.abort(1)
    await scheduler.submit(built_by("gcc"))
    await scheduler.claim(claim_of("poor", 0, capabilities=has("clang")))
    unmet = {queue.kind: queue.unmet for queue in await scheduler.store.queues()}
    assert unmet[StepKind.BUILD] == ["none of the 1 live `build` workers has gcc"]


async def test_the_only_host_is_asked_before_its_workers_live(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_workers, "HOST_SECONDS", 0.0)
    detected = has()

    async def host() -> Capabilities:
        return detected

    store = platform.store(host=host)
    with pytest.raises(UserError, match="no worker has gcc-9; there are gcc;"):
        await store.submit(built_by("gcc-9"))
    with pytest.raises(UserError, match="syzkaller"):
        await store.submit(syz(COMMIT))
    detected = has(syzkaller=(COMMIT,))  # the binaries were built
    await store.submit(syz(COMMIT))
    await store.close()


@pytest.mark.thorough
async def test_a_worker_tells_what_it_gets_while_it_runs(
    platform: Platform, scheduler: Scheduler, tmp_path: Path
) -> None:
    compilers, looks = ["gcc"], 0

    async def look() -> Capabilities:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise InfrastructureError("storage_down", "no answer")
        return has(*compilers)

    async def build(run: StepContext) -> StepResult | None:
        run.log("built")
        return WELL.result

    async def reported(compiler: str) -> None:
        async with asyncio.timeout(20):
            while not any(
                worker.capabilities and compiler in worker.capabilities.compilers
                for worker in await scheduler.store.workers()
            ):
                await asyncio.sleep(0.02)

    handlers = {StepKind.BUILD: build}
    place = platform.bus, platform.storage, handlers, tmp_path / "work"
    worker = Worker(scheduler, *place, capabilities=has("gcc"), look=look, look_seconds=0.1)
    working = asyncio.create_task(worker.serve())
    await reported("gcc")
    with pytest.raises(UserError, match="no worker has gcc-9; there are gcc;"):
        await scheduler.submit(built_by("gcc-9"))
    compilers.append("bullseye/gcc-9")  # another worker has stored the image
    await reported("bullseye/gcc-9")
    view, _ = await scheduler.submit(built_by("gcc-9"))
    assert (await finished(scheduler, view.id)).state is State.SUCCEEDED
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.attack
def test_words_of_any_number_of_compilers_wait_in_few_lanes() -> None:
    words = [f"gcc (mine {n}) 10.{n % 100}.{n // 100}" for n in range(3000)]
    needs = {BUILD.model_copy(update={"compiler": w}).needs().model_dump_json() for w in words}
    assert len(needs) <= 10
