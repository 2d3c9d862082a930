"""Who gets which step: capabilities, fairness between submitters, priorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import Needs, Reproducer, ReproduceSpec, StepKind, StepRef, VmShape
from kgym.api.worker_calls import Claimed
from kgym_scheduler.job_store import JobStore
from tests.scheduler.parts import BUILD, WELL, Clock, claim_of, job

pytestmark = pytest.mark.anyio

CLANG = BUILD.model_copy(update={"compiler": "clang"})
GCC_HOST = Capabilities(compilers=["gcc", "gcc-12"], cores=2, memory=4096)
CLANG_HOST = Capabilities(compilers=["clang"], cores=2, memory=4096)


def guest(memory: int, cpus: int = 1) -> ReproduceSpec:
    return ReproduceSpec(
        build=StepRef(step=0),
        reproducer=Reproducer(text="int main(void) { return 0; }"),
        vm=VmShape(memory=memory, cpus=cpus),
    )


async def take(
    store: JobStore, name: str = "worker", has: Capabilities | None = None, want: int = 1
) -> Claimed:
    claimed, _ = await store.claim(claim_of(name, want, capabilities=has))
    return claimed


async def order(store: JobStore, count: int) -> list[int]:
    """The jobs whose steps are claimed, one after the other."""
    return [(await take(store)).assignments[0].job_id for _ in range(count)]


def test_a_build_needs_its_compiler_and_a_guest_cores_and_memory() -> None:
    assert lacking(CLANG.needs(), GCC_HOST) == ["clang"]
    assert lacking(CLANG.needs(), CLANG_HOST) == []
    assert lacking(guest(8000, 4).needs(), GCC_HOST) == ["4 cores", "8192 MiB of memory"]
    assert lacking(guest(3000, 2).needs(), GCC_HOST) == []
    assert lacking(BUILD.needs(), Capabilities(architecture="aarch64", compilers=["gcc"])) == [
        "x86_64"
    ]
    assert lacking(Needs(architecture="s390x", compiler="clang-99", memory=1 << 30), None) == []
    assert len({guest(memory).needs().memory for memory in range(256, 65536, 64)}) < 20


@given(st.integers(256, 1 << 20))
def test_memory_is_rounded_up_by_less_than_half(memory: int) -> None:
    rounded = guest(memory).needs().memory
    assert memory <= rounded < memory * 1.5 + 1


async def test_a_worker_never_takes_a_step_that_it_cannot_do(store: JobStore) -> None:
    await store.submit(job(CLANG))
    await store.submit(job(BUILD))
    claimed = await take(store, has=GCC_HOST, want=5)
    assert [assignment.job_id for assignment in claimed.assignments] == [2]
    assert claimed.more == []
    claimed, _ = await store.claim(claim_of(kinds=[StepKind.REPRODUCE]))
    assert claimed.assignments == []
    claimed = await take(store, "other", CLANG_HOST, 5)
    assert [assignment.job_id for assignment in claimed.assignments] == [1]


async def test_a_step_that_no_live_worker_can_do_says_why(store: JobStore, clock: Clock) -> None:
    view, _ = await store.submit(job(CLANG))
    clock.advance(5)
    waiting = (await store.get(view.id)).steps[0].waiting
    assert waiting is not None
    assert waiting.startswith("no live worker does `build` steps")
    await take(store, has=GCC_HOST)
    reason = "none of the 1 live `build` workers has clang"
    assert (await store.get(view.id)).steps[0].waiting == reason
    assert [queue.unmet for queue in await store.queues() if queue.kind == "build"] == [[reason]]
    await take(store, "other", CLANG_HOST)
    assert (await store.get(view.id)).steps[0].waiting is None


async def test_a_draining_worker_gets_nothing(store: JobStore) -> None:
    await take(store)
    assert (await store.drain("worker")).state == "draining"
    await store.submit(job())
    claimed = await take(store)
    assert (claimed.draining, claimed.assignments) == (True, [])


@pytest.mark.thorough
async def test_many_jobs_of_one_submitter_do_not_starve_anothers_single_one(
    store: JobStore,
) -> None:
    for _ in range(30):
        await store.submit(job(), submitter="many")
    assert await order(store, 5) == [1, 2, 3, 4, 5]
    await store.submit(job(), submitter="single")
    assert 31 in await order(store, 2)


async def test_submitters_take_turns(store: JobStore) -> None:
    for name in ("a", "b", "c"):
        for _ in range(4):
            await store.submit(job(), submitter=name)
    first = await order(store, 6)
    assert sorted((job_id - 1) // 4 for job_id in first) == [0, 0, 1, 1, 2, 2]


async def test_who_submits_one_after_the_other_does_not_overtake_those_who_wait(
    store: JobStore,
) -> None:
    for _ in range(10):
        await store.submit(job(), submitter="many")
    taken = []
    for _ in range(8):
        await store.submit(job(), submitter="again")
        taken += await order(store, 1)
    assert sum(job_id <= 10 for job_id in taken) >= 3


@pytest.mark.thorough
async def test_an_idle_time_is_no_credit(store: JobStore) -> None:
    for _ in range(10):
        await store.submit(job(), submitter="busy")
    await order(store, 10)
    for name in ("newcomer", "busy"):
        for _ in range(6):
            await store.submit(job(), submitter=name)
    assert sum(job_id > 16 for job_id in await order(store, 6)) >= 2


async def test_priority_comes_before_turns(store: JobStore) -> None:
    for priority in (0, -5, 7, 0):
        await store.submit(job().model_copy(update={"priority": priority}))
    await store.submit(job().model_copy(update={"priority": 3}), submitter="other")
    assert await order(store, 5) == [3, 5, 1, 4, 2]


async def test_claims_of_the_same_moment_share_what_there_is(store: JobStore) -> None:
    for _ in range(6):
        await store.submit(job())
    taken = await take(store, "one", want=3)
    assert (len(taken.assignments), taken.more) == (3, [StepKind.BUILD])
    two = await take(store, "two", want=5)
    assert (len(two.assignments), two.more) == (3, [])


async def test_a_later_step_of_a_job_waits_its_turn_too(store: JobStore) -> None:
    await store.submit(job(BUILD, BUILD), submitter="many")
    for _ in range(5):
        await store.submit(job(), submitter="many")
    claimed = await take(store)
    await store.finish(claimed.assignments[0].lease, WELL)
    await store.submit(job(), submitter="single")
    assert 7 in await order(store, 2)
