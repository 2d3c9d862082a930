"""The store, on SQLite and on PostgreSQL: each change of state, and each that is refused."""

import asyncio
import contextlib
import uuid
from datetime import timedelta

import pytest

from kgym.api.jobs import JobFilter, JobRequest, JobView, Progress
from kgym.api.states import State
from kgym.api.steps import StepKind, StepRef, StepSpec
from kgym.api.worker_calls import Assignment, AttemptEnding
from kgym.errors import Conflict, NotFound, UserError
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.job_change import Changed
from kgym_scheduler.queue.row_writes import NOTIFY_BELOW
from tests.refused import refused
from tests.scheduler.parts import (
    BUILD,
    BUILT,
    REPRODUCED,
    WELL,
    Clock,
    Platform,
    badly,
    claim_of,
    job,
    reproduce,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def stopped(clock: Clock) -> None:
    """Time passes when a test says so."""
    clock.stop()


async def submit(store: JobStore, request: JobRequest | None = None) -> JobView:
    view, changed = await store.submit(request or job())
    assert changed is not None
    return view


async def take(store: JobStore, name: str = "worker") -> Assignment | None:
    """Claim one step."""
    claimed, _ = await store.claim(claim_of(name))
    return next(iter(claimed.assignments), None)


async def claim(store: JobStore) -> Assignment:
    assignment = await take(store)
    assert assignment is not None
    return assignment


async def finish(store: JobStore, ending: AttemptEnding = WELL) -> Changed:
    """Claim a step and end it."""
    changed = await store.finish((await claim(store)).lease, ending)
    assert changed is not None
    return changed


async def states(store: JobStore, job_id: int) -> list[str]:
    view = await store.get(job_id)
    return [str(view.state), *(str(step.state) for step in view.steps)]


# --- submission -----------------------------------------------------------------------------


async def test_one_key_makes_one_job_also_at_once_and_for_one_request_only(store: JobStore) -> None:
    views = await asyncio.gather(*(store.submit(job(), "key") for _ in range(8)))
    assert {view.id for view, _ in views} == {1}
    again, changed = await store.submit(job(), "key")
    assert (again, changed) == (await store.get(1), None)
    with refused("key_reused", "was used for job 1", UserError):
        await store.submit(job(tags=("other",)), "key")


@pytest.mark.parametrize(
    ("ref", "complaint"),
    [
        (StepRef(job=99, step=0), "there is no step 0 of job 99"),
        (StepRef(job=1, step="kernel"), "there is no step kernel of job 1"),
        (StepRef(job=1, step=1), "is a `reproduce` step, not a `build` step"),
        (StepRef(job=2, step=0), "is queued; it has to have succeeded"),
    ],
)
async def test_a_reference_to_a_step_that_cannot_be_used_is_refused(
    store: JobStore, ref: StepRef, complaint: str
) -> None:
    await submit(store, job(BUILD, reproduce(0)))
    await finish(store)
    await finish(store, AttemptEnding(result=REPRODUCED))
    await submit(store)
    with refused("bad_reference", complaint, UserError) as error:
        await store.submit(job(reproduce(ref.step, ref.job)))
    assert error.value.details["errors"] == [
        {"location": "body.steps.0.build", "message": str(error.value)}
    ]


async def test_a_step_is_named_by_later_ones_and_by_other_jobs(store: JobStore) -> None:
    named = BUILD.model_copy(update={"name": "kernel"})
    ran = reproduce("kernel").model_copy(update={"name": "run"})
    await submit(store, job(named, ran))
    await finish(store)
    run = await claim(store)
    assert run.inputs["build"].result == BUILT
    await store.finish(run.lease, AttemptEnding(result=REPRODUCED))
    view, _ = await store.submit(job(reproduce("kernel", 1, StepRef(job=1, step="run"))))
    claimed = await claim(store)
    assert claimed.job_id == view.id
    assert claimed.inputs["baseline"].result == REPRODUCED
    seen = await store.get(1)
    assert [step.name for step in seen.steps] == ["kernel", "run"]
    assert seen.step("run") == seen.steps[1] == seen.step(1)
    assert seen.step("other") is None


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ((reproduce("kernel"),), "names step kernel, which is not an earlier step"),
        ((BUILD.model_copy(update={"name": "a"}), reproduce("b")), "names step b, which is not"),
        ((BUILD.model_copy(update={"name": "a"}),) * 2, "several steps have the same name: a"),
    ],
)
def test_a_name_that_leads_nowhere_or_to_two_is_refused(
    steps: tuple[StepSpec, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        job(*steps)


# --- attempts -------------------------------------------------------------------------------


async def test_success_queues_the_next_step_and_the_last_one_ends_the_job(store: JobStore) -> None:
    view = await submit(store, job(BUILD, BUILD))
    changed = await finish(store)
    assert await states(store, view.id) == ["queued", "succeeded", "queued"]
    assert changed.queued == (StepKind.BUILD,)
    await finish(store)
    after = await store.get(view.id)
    assert (after.state, [s.result for s in after.steps]) == (State.SUCCEEDED, [BUILT, BUILT])


async def test_an_infrastructure_failure_is_retried_later_and_later_then_fails(
    store: JobStore, clock: Clock
) -> None:
    view = await submit(store, job(BUILD, BUILD))
    for delay in (2, 4):
        changed = await finish(store, badly("infrastructure"))
        assert changed.queued == ()
        assert await states(store, view.id) == ["queued", "queued", "pending"]
        failure = (await store.get(view.id)).steps[0].failure
        assert failure == badly("infrastructure").failure
        clock.advance(delay - 0.5)
        assert await take(store) is None
        assert await store.look() == (set(), False)
        clock.advance(0.6)
        assert await store.look() == ({StepKind.BUILD}, False)
    await finish(store, badly("infrastructure"))
    assert await states(store, view.id) == ["failed", "failed", "skipped"]
    assert (await store.get(view.id)).steps[0].attempt == 3


@pytest.mark.parametrize("ending", [AttemptEnding(), AttemptEnding(result=REPRODUCED)])
async def test_an_attempt_without_the_result_of_its_kind_is_no_success(
    store: JobStore, ending: AttemptEnding
) -> None:
    view = await submit(store)
    await finish(store, ending)
    after = await store.get(view.id)
    failure = after.steps[0].failure
    assert after.state is State.QUEUED
    assert failure is not None
    assert (failure.cause, failure.reason) == ("infrastructure", "no_result")


async def test_a_step_is_claimed_once(store: JobStore) -> None:
    await submit(store)
    await claim(store)
    assert await take(store, "another") is None


@pytest.mark.thorough
async def test_two_stores_claim_all_steps_once(platform: Platform) -> None:
    first, second = platform.store(), platform.store()
    try:
        await asyncio.gather(*(submit(first) for _ in range(40)))
        got = await asyncio.gather(
            *(store.claim(claim_of("w", 10)) for store in (first, second) for _ in range(3))
        )
        steps = [assignment.step_id for claimed, _ in got for assignment in claimed.assignments]
        assert sorted(steps) == list(range(1, 41))
    finally:
        await first.close()
        await second.close()


@pytest.mark.thorough
async def test_stores_that_claim_report_end_and_abort_at_once_do_each_thing_once(
    platform: Platform,
) -> None:
    stores = [platform.store() for _ in range(3)]
    ids = [(await submit(stores[0], job(BUILD, BUILD))).id for _ in range(15)]
    ended: list[tuple[int, int]] = []

    async def work(store: JobStore, number: int) -> None:
        while any([not (await store.state(job_id)).final for job_id in ids]):
            claimed, _ = await store.claim(claim_of(f"w{number}", 4))
            for held in claimed.assignments:
                heard = await asyncio.gather(
                    *(s.report(held.lease, "words\n", Progress(stage="half")) for s in stores)
                )
                taken = await asyncio.gather(*(s.finish(held.lease, WELL) for s in stores))
                # each store was told the same: taken (maybe by another), or aborted meanwhile
                assert len({change is None for change in taken}) == 1
                if any(change and change.ended for change in taken):
                    ended.append((held.job_id, held.number))
                assert None not in heard or (await store.state(held.job_id)) is State.ABORTED

    async def abort() -> None:
        for job_id in ids[::3]:
            await asyncio.sleep(0.05)
            with contextlib.suppress(Conflict):
                await stores[job_id % 3].abort(job_id)

    try:
        await asyncio.gather(abort(), *(work(store, n) for n, store in enumerate(stores)))
        assert len(ended) == len(set(ended))
        for job_id in ids:
            _, events = await stores[0].events(job_id, 0)
            done = [e.step for e in events if e.kind == "state" and e.data["state"] == "succeeded"]
            view = await stores[0].get(job_id)
            assert done == [n for n, step in enumerate(view.steps) if step.state == "succeeded"]
            assert sorted(done) == sorted(number for of, number in ended if of == job_id)
            assert view.state == ("succeeded" if len(done) == 2 else "aborted")
            assert not [e for e in events if e.kind == "progress"]
    finally:
        for store in stores:
            await store.close()


async def test_a_claim_whose_answer_was_lost_gives_the_same_steps_again(store: JobStore) -> None:
    for _ in range(3):
        await submit(store)
    wish = claim_of(want=2)
    first, _ = await store.claim(wish)
    again, changes = await store.claim(wish.model_copy(update={"again": True}))
    assert changes == []
    assert sorted(again.assignments, key=lambda a: a.step_id) == first.assignments
    assert len(first.assignments) == 2


async def test_finishing_twice_is_finishing_once(store: JobStore) -> None:
    view = await submit(store)
    lease = (await claim(store)).lease
    assert await store.finish(lease, WELL)
    assert await store.finish(lease, badly("user")) == Changed(view.id)
    assert (await store.get(view.id)).state is State.SUCCEEDED


async def test_a_released_step_is_queued_again_and_the_attempt_does_not_count(
    store: JobStore,
) -> None:
    view = await submit(store)
    for _ in range(5):
        lease = (await claim(store)).lease
        changed = await store.release(lease)
        assert changed is not None
        assert changed.queued == (StepKind.BUILD,)
        assert await store.release(lease) == Changed(view.id)
    await finish(store, badly("infrastructure"))
    assert (await store.get(view.id)).state is State.QUEUED


async def test_an_expired_lease_leads_to_another_attempt(store: JobStore, clock: Clock) -> None:
    view = await submit(store)
    old = await claim(store)
    clock.advance(59)
    assert await store.expire() == []
    clock.advance(2)
    [changed] = await store.expire()
    assert changed.queued == (StepKind.BUILD,)
    new = await claim(store)
    assert (old.attempt, new.attempt) == (1, 2)
    assert await store.finish(new.lease, WELL)
    assert (await store.get(view.id)).state is State.SUCCEEDED


async def test_a_stale_attempt_changes_nothing(store: JobStore, clock: Clock) -> None:
    view = await submit(store)
    old = await claim(store)
    clock.advance(61)
    await store.expire()
    await claim(store)
    before = await store.get(view.id)
    for lease in (old.lease, uuid.uuid4()):
        assert await store.report(lease, "late\n", Progress(stage="late")) is None
        assert await store.finish(lease, WELL) is None
        assert await store.release(lease) is None
    assert await store.get(view.id) == before
    assert await store.log(view.id, 0) == []


async def test_a_report_extends_the_lease(store: JobStore, clock: Clock) -> None:
    await submit(store)
    lease = (await claim(store)).lease
    for _ in range(3):
        clock.advance(50)
        assert await store.report(lease, "", None)
        assert await store.expire() == []


async def test_a_step_that_loses_three_workers_fails(store: JobStore, clock: Clock) -> None:
    view = await submit(store, job(BUILD, BUILD))
    for _ in range(3):
        await claim(store)
        clock.advance(61)
        await store.expire()
    assert await states(store, view.id) == ["failed", "failed", "skipped"]
    failure = (await store.get(view.id)).steps[0].failure
    assert failure is not None
    assert (failure.cause, failure.reason) == ("infrastructure", "lease_expired")


async def test_a_result_that_comes_late_but_before_the_sweep_is_taken(
    store: JobStore, clock: Clock
) -> None:
    view = await submit(store)
    lease = (await claim(store)).lease
    clock.advance(3600)
    assert await store.finish(lease, WELL)
    assert await store.expire() == []
    assert (await store.get(view.id)).state is State.SUCCEEDED


# --- inputs ---------------------------------------------------------------------------------


async def test_a_step_whose_input_is_gone_fails_by_the_users_cause(store: JobStore) -> None:
    other = await submit(store)
    await finish(store)
    view = await submit(store, job(reproduce(0, other.id), BUILD))
    await store.restart(other.id)
    await store.claim(claim_of(want=2))
    assert await states(store, view.id) == ["failed", "failed", "skipped"]
    failure = (await store.get(view.id)).steps[0].failure
    assert failure is not None
    assert (failure.cause, failure.reason) == ("user", "input_missing")


# --- abort and restart ----------------------------------------------------------------------


async def test_an_abort_ends_all_unfinished_steps(store: JobStore) -> None:
    view = await submit(store, job(BUILD, BUILD, BUILD))
    await finish(store)
    lease = (await claim(store)).lease
    changed = await store.abort(view.id)
    assert [(ended.lease, ended.outcome) for ended in changed.ended] == [(lease, "aborted")]
    assert await states(store, view.id) == ["aborted", "succeeded", "aborted", "aborted"]
    assert await store.finish(lease, WELL) is None
    assert await store.release(lease) is None
    assert await states(store, view.id) == ["aborted", "succeeded", "aborted", "aborted"]


async def test_an_abort_is_final_and_a_finished_job_is_not_aborted(store: JobStore) -> None:
    view = await submit(store)
    assert (await store.abort(view.id)).ended == ()
    assert await take(store) is None
    before = await store.get(view.id)
    await store.abort(view.id)
    assert await store.get(view.id) == before
    await submit(store)
    await finish(store)
    with pytest.raises(Conflict, match="has succeeded already"):
        await store.abort(2)


async def test_a_restart_runs_a_step_and_all_later_ones_again(store: JobStore) -> None:
    view = await submit(store, job(BUILD, BUILD, BUILD))
    for _ in range(3):
        await finish(store)
    changed = await store.restart(view.id, 1)
    assert len(changed.queued) == 1
    assert await states(store, view.id) == ["queued", "succeeded", "queued", "pending"]
    again = await store.get(view.id)
    assert [s.result for s in again.steps] == [BUILT, None, None]
    assert [s.finished_at is None for s in again.steps] == [False, True, True]


async def test_a_restart_begins_by_default_with_the_step_that_failed(store: JobStore) -> None:
    view = await submit(store, job(BUILD, BUILD, BUILD))
    await finish(store)
    with pytest.raises(Conflict, match="is queued; abort it"):
        await store.restart(view.id)
    await finish(store, badly("user"))
    with pytest.raises(Conflict, match="step 1 of job 1 has not succeeded"):
        await store.restart(view.id, 2)
    with pytest.raises(NotFound, match="job 1 has no step 5"):
        await store.restart(view.id, 5)
    await store.restart(view.id)
    assert await states(store, view.id) == ["queued", "succeeded", "queued", "pending"]


async def test_a_restarted_step_has_all_its_attempts_again(store: JobStore, clock: Clock) -> None:
    view = await submit(store)
    for _ in range(2):
        for _ in range(3):
            assert await states(store, view.id) == ["queued", "queued"]
            await finish(store, badly("infrastructure"))
            clock.advance(10)
        assert await states(store, view.id) == ["failed", "failed"]
        await store.restart(view.id)


# --- notifications --------------------------------------------------------------------------


async def test_nobody_is_notified_of_further_steps_where_many_wait(store: JobStore) -> None:
    notified = 0
    for _ in range(40):
        _, changed = await store.submit(job())
        assert changed is not None
        notified += len(changed.queued)
    assert notified == NOTIFY_BELOW


async def test_the_sweeper_learns_what_kinds_of_steps_wait(store: JobStore) -> None:
    assert await store.waiting() == set()
    await submit(store)
    assert await store.waiting() == {StepKind.BUILD}
    await claim(store)
    assert await store.waiting() == set()


# --- events ---------------------------------------------------------------------------------


async def test_the_progress_of_a_finished_step_is_forgotten_and_its_log_kept(
    store: JobStore,
) -> None:
    view = await submit(store)
    lease = (await claim(store)).lease
    for done in range(5):
        await store.report(lease, f"{done}\n", Progress(stage="make", done=done))
    _, events = await store.events(view.id, 0)
    assert [event.data["done"] for event in events if event.kind == "progress"] == [4]
    await store.finish(lease, WELL)
    _, events = await store.events(view.id, 0)
    kinds = [event.kind for event in events]
    assert (kinds.count("progress"), kinds.count("log")) == (0, 5)


async def test_the_log_is_kept_by_step_and_attempt(store: JobStore, clock: Clock) -> None:
    view = await submit(store, job(BUILD, BUILD))
    for text in ("first", "second"):
        lease = (await claim(store)).lease
        await store.report(lease, text, None)
        if text == "first":
            await store.finish(lease, badly("infrastructure"))
            clock.advance(3)
    assert await store.finish(lease, WELL)

    async def log(step: int | None = None, attempt: int | None = None) -> list[str]:
        return [event.data["text"] for event in await store.log(view.id, 0, step, attempt)]

    assert await log() == ["first", "second"]
    assert await log(0, 2) == ["second"]
    assert await log(1) == []


# --- lists ----------------------------------------------------------------------------------


async def ids(store: JobStore, **conditions: object) -> list[int]:
    page = await store.page(JobFilter.model_validate(conditions))
    return [view.id for view in page.jobs]


async def test_a_list_shows_the_newest_first_page_by_page(store: JobStore) -> None:
    for _ in range(4):
        await submit(store, job(BUILD, reproduce(0)))
    first = await store.page(JobFilter(limit=2))
    await submit(store)  # it does not shift the next page
    second = await store.page(JobFilter(limit=2, cursor=first.next))
    assert [view.id for view in (*first.jobs, *second.jobs)] == [4, 3, 2, 1]
    assert second.next is None
    assert [step.spec for step in first.jobs[0].steps] == [None, None]


async def test_a_list_is_filtered_by_time(store: JobStore, clock: Clock) -> None:
    await submit(store, job(tags=("a",)))
    clock.advance(100)
    await submit(store, job(tags=("a",)))
    border = clock() - timedelta(seconds=50)
    assert await ids(store, created_after=border) == [2]
    assert await ids(store, created_before=border, tag="a") == [1]


async def test_new_tags_replace_the_old_ones(store: JobStore) -> None:
    view = await submit(store, job(tags=("old", "kept")))
    after = await store.tag(view.id, ["kept", "new"])
    assert after.tags == ["kept", "new"]
    assert await ids(store, tag="old") == []
    assert await ids(store, tag="new", kind="build") == [view.id]


async def test_queues_count_what_waits_and_runs(store: JobStore, clock: Clock) -> None:
    await submit(store)
    await submit(store)
    await submit(store)
    clock.advance(30)
    await claim(store)
    build = next(queue for queue in await store.queues() if queue.kind == "build")
    assert (build.queued, build.running) == (2, 1)
    assert build.oldest_seconds == pytest.approx(30, abs=5)
