"""Lists and counts of jobs: every condition alone and with others, at a bounded cost."""

import itertools
import random

import pytest

from kgym.api.bulk import AbortFilter, AbortRequest, RestartFilter, RestartRequest
from kgym.api.jobs import JobConditions, JobFilter, JobView
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import StepKind, Verdict
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import Conflict, Forbidden, UserError
from kgym_scheduler.database import job_lists
from kgym_scheduler.job_store import JobStore
from tests.refused import refused
from tests.results import built, ran
from tests.scheduler.parts import WELL, badly, claim_of, end, job, reproduce, take
from tests.tables import json_rows

pytestmark = pytest.mark.anyio


async def listed(store: JobStore, caller: str = "me", **conditions: object) -> list[int]:
    """The jobs that meet the conditions, over all pages."""
    ids: list[int] = []
    wanted = JobFilter.model_validate({"limit": 3, **conditions})
    while True:
        page = await store.page(wanted, caller)
        assert len(page.jobs) <= 3
        ids += [job_row.id for job_row in page.jobs]
        if page.next is None:
            return ids
        wanted = wanted.model_copy(update={"cursor": page.next})


async def some_jobs(store: JobStore) -> list[JobView]:
    """Jobs of two submitters on two bugs that came to different ends."""
    built, _ = await store.submit(job(tags=("bug=base",)), None, "me")
    await end(store)
    dice = random.Random(1)
    for number in range(14):
        tags = (f"bug={('one', 'two')[number % 2]}", "big" if number % 3 else "small")
        request = job(reproduce(0, job=built.id), tags=tags)
        await store.submit(request, None, ("me", "you")[number % 4 == 0])
    for number in range(9):
        claimed, _ = await store.claim(claim_of(want=1))
        [assignment] = claimed.assignments
        verdict = dice.choice([Verdict.SAME_CRASH, Verdict.NO_CRASH])
        result = ran(verdict, reason=f"run {number}")
        well = AttemptEnding(result=result)
        await store.finish(assignment.lease, badly("user") if number % 4 == 3 else well)
    page = await store.page(JobFilter(limit=200))
    return page.jobs


CONDITIONS = json_rows(__file__, "conditions.jsonl")


def meets(view: JobView, conditions: dict[str, object]) -> bool:
    """The same, said once more."""
    text = str(conditions.get("text", "")).lower()
    words = [view.title or "", str(view.tags), view.submitter]
    return all(
        {
            "state": lambda v: view.state == v,
            "kind": lambda v: any(step.kind == v for step in view.steps),
            "tag": lambda v: v in view.tags,
            "bug": lambda v: f"bug={v}" in view.tags,
            "submitter": lambda v: view.submitter == v,
            "mine": lambda _: view.submitter == "me",
            "outcome": lambda v: view.outcome == v,
            "text": lambda _: text == str(view.id) or any(text in word.lower() for word in words),
            "ids": lambda v: str(view.id) in str(v).split(","),
        }[name](value)
        for name, value in conditions.items()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("scanned", [4, 4000])
async def test_every_two_conditions_give_the_jobs_that_meet_both(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    everything = await some_jobs(store)
    monkeypatch.setattr(job_lists, "SCANNED", scanned)
    monkeypatch.setattr(job_lists, "READ", max(scanned, 15))
    assert len(everything) == 15
    assert {view.outcome for view in everything} == {
        *(Outcome.WAITING, Outcome.BUILT, Outcome.REFUSED),
        *(Outcome.REPRODUCED, Outcome.NOT_REPRODUCED),
    }
    for first, second in itertools.product(CONDITIONS, CONDITIONS):
        conditions = {**first, **second}
        expected = [view.id for view in everything if meets(view, conditions)]
        assert await listed(store, **conditions) == expected, conditions
        count = await store.count(JobConditions.model_validate(conditions), "me")
        assert (count.jobs, count.more) == (len(expected), False), conditions


async def test_a_count_of_many_says_that_there_are_more(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lists, "COUNTED", 5)
    monkeypatch.setattr(job_lists, "READ", 5)
    await store.submit_all([job(tags=(f"n:{n}",)) for n in range(8)], None, "me")
    count = await store.count(JobConditions(state=State.QUEUED))
    assert (count.jobs, count.more) == (5, True)
    count = await store.count(JobConditions(text="n:0"))  # the oldest, which is not looked at
    assert (count.jobs, count.more) == (0, True)
    count = await store.count(JobConditions(tag="n:0"))
    assert (count.jobs, count.more) == (1, False)


async def test_a_brief_list_says_all_of_steps_but_what_they_left(store: JobStore) -> None:
    await store.submit(job(), None, "me")
    await end(store)
    [whole] = (await store.page(JobFilter())).jobs
    [brief] = (await store.page(JobFilter(brief=True))).jobs
    [step] = whole.steps
    assert step.result is not None
    assert brief.steps == [step.model_copy(update={"result": None, "artifacts": []})]


@pytest.mark.attack
async def test_a_list_tells_the_kernel_and_no_words_that_look_like_one(store: JobStore) -> None:
    words = 'x"kernel_release":"evil","kernel_release":"evil"'
    await store.submit(job(), None, "me")
    assignment = await take(store)
    result = built().model_copy(update={"source_identity": words, "kernel_release": "6.1.192-a"})
    await store.finish(assignment.lease, WELL.model_copy(update={"result": result}))
    for brief in (True, False):
        [view] = (await store.page(JobFilter(brief=brief))).jobs
        assert view.kernel == "6.1.192-a"


async def test_text_is_no_pattern(store: JobStore) -> None:
    await store.submit_all([job(tags=("a=b",)), job(tags=("a_b",))], None, "me")
    assert await listed(store, text="a_b") == [2]
    assert await listed(store, text="%") == []
    assert await listed(store, text="1" * 200) == []


async def test_a_bulk_abort_of_another_number_than_expected_does_nothing(store: JobStore) -> None:
    ids, _ = await store.submit_all([job(tags=("bug=one",)) for _ in range(3)], None, "me")
    other, _ = await store.submit(job(tags=("bug=two",)), None, "me")
    wanted = AbortFilter(bug="one")
    with pytest.raises(Conflict) as error:
        await store.abort_all(AbortRequest(filter=wanted, expected=2), "me", "me")
    assert (error.value.reason, error.value.details["jobs"]) == ("count_differs", 3)
    assert await listed(store, state="queued") == [other.id, *reversed(ids)]
    runs = AbortFilter(bug="one", outcome=Outcome.RUNNING)
    none, _ = await store.abort_all(AbortRequest(filter=runs, expected=0), "me", "me")
    assert none.aborted == []
    waits = AbortFilter(bug="one", outcome=Outcome.WAITING)
    done, _ = await store.abort_all(AbortRequest(filter=waits, expected=3), "me", "me")
    assert done.aborted == ids
    with pytest.raises(ValueError, match="`expected` is for a `filter`"):
        AbortRequest(jobs=ids, expected=3)


async def test_a_bulk_restart_begins_again_what_has_failed(store: JobStore) -> None:
    await store.submit_all([job(tags=("bug=one",)) for _ in range(4)], None, "me")
    await store.submit(job(tags=("bug=one",)), None, "you")
    for number in range(4):
        await end(store, badly("user") if number else WELL)
    failed = await listed(store, state="failed")
    mine = [job_id for job_id in failed if job_id in await listed(store, mine=True)]
    wanted = RestartFilter(state=State.FAILED, bug="one", kind=StepKind.BUILD)
    with pytest.raises(Conflict, match="nothing was done"):
        await store.restart_all(RestartRequest(filter=wanted, expected=9), "me", "me")
    done, changes = await store.restart_all(
        RestartRequest(filter=wanted, expected=len(mine)), "me", "me"
    )
    assert (done.restarted, done.more) == (sorted(mine), False)
    assert {changed.job_id for changed in changes} == set(mine)
    assert {await store.state(job_id) for job_id in mine} == {State.QUEUED}
    everybody = wanted.model_copy(update={"mine": False})
    with pytest.raises(Forbidden):
        await store.restart_all(RestartRequest(filter=everybody), "me", "me")


async def test_a_bulk_restart_of_more_than_can_be_counted_is_refused(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, _ = await store.submit_all([job() for _ in range(3)], None, "me")
    await store.abort_all(AbortRequest(jobs=ids), "me", "me")
    monkeypatch.setattr(job_lists, "COUNTED", 2)
    wanted = RestartRequest(filter=RestartFilter(state=State.ABORTED))
    with refused("filter_too_wide", kind=UserError):
        await store.restart_all(wanted, "me", "me")
