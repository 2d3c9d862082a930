"""What a job came to is stored with its end, on either database, whatever its results are."""

from collections.abc import Sequence

import pytest
from sqlalchemy import text

from kgym.api import steps
from kgym.api.jobs import JobRequest, JobView
from kgym.api.outcomes import Outcome
from kgym.api.patch_rows import Check, PatchRow
from kgym.api.states import State
from kgym.api.worker_calls import AttemptEnding
from kgym.bugs import bundle
from kgym.bugs.bug import patch_tag
from kgym_scheduler.job_store import JobStore
from tests.results import GOOD, built, checked, ran
from tests.scheduler.parts import BUILD, badly, claim_of, end, job, reproduce

pytestmark = pytest.mark.anyio
BUG = bundle.load("watch-queue-filter")
TRIAL = BUG.job(BUG.fix).model_copy(update={"group": "g"})
SHOWN = ran(steps.Verdict.SAME_CRASH, "KASAN: out-of-bounds", evidence=steps.Evidence())
GONE = ran(steps.Verdict.NO_CRASH, evidence=GOOD)
WEAKER = steps.Finding(
    check="detector", severity=steps.Severity.BLOCKING, reason="flags_weaker", message="no KASAN"
)


async def came_to(
    store: JobStore, request: JobRequest, answers: Sequence[steps.StepResult | AttemptEnding]
) -> tuple[JobView, PatchRow]:
    """Run a job; return it, and its row among the group's patches."""
    submitted, _ = await store.submit(request.model_copy(update={"group": "g"}), None, "me")
    await end(store, *answers)
    return await store.get(submitted.id), await row_of(store, submitted.id)


async def row_of(store: JobStore, job_id: int) -> PatchRow:
    [row] = (await store.group_patches("me", "g", job_id - 1, 1)).patches
    return row


async def test_a_trial_has_a_verdict_and_is_resolved_until_it_begins_again(store: JobStore) -> None:
    view, row = await came_to(store, TRIAL, [built(), SHOWN, built(), GONE])
    assert view.sentence == (
        "Resolved: 1 of 1 controls reported; by the reproducer alone; no blocking finding"
    )
    assert (row.outcome, row.reason) == (view.outcome, view.reason)
    assert (row.verdict, row.title) == (steps.Verdict.NO_CRASH, None)
    group = await store.group("me", "g")
    assert group.outcomes == {Outcome.RESOLVED: 1}
    await store.restart(view.id, 3, "me")
    again = await store.get(view.id)
    assert (again.sentence, again.verdict) == ("Waiting: step 3 (reproduce)", None)
    [past] = again.history
    assert (past.outcome, past.reason) == (view.outcome, view.reason)
    assert (await row_of(store, view.id)).reason is None
    group = await store.group("me", "g")
    assert group.outcomes == {Outcome.WAITING: 1}
    await end(store, SHOWN)
    row = await row_of(store, view.id)
    assert (row.verdict, row.outcome) == (steps.Verdict.SAME_CRASH, Outcome.NOT_RESOLVED)
    assert row.title == "KASAN: out-of-bounds"


async def test_the_history_of_a_job_takes_no_detail_of_a_failure_for_an_end(
    store: JobStore,
) -> None:
    failure = {"cause": "infrastructure", "reason": "x", "message": "x"}
    lost = steps.Failure.model_validate({**failure, "details": {"outcome": "x"}})
    view, _ = await came_to(store, job(), [AttemptEnding(failure=lost)])
    assert (view.state, view.history) == (State.QUEUED, [])


async def test_a_bug_that_did_not_show_is_not_gone_with_any_confidence(store: JobStore) -> None:
    quiet = ran(steps.Verdict.NO_CRASH, evidence=steps.Evidence())
    sure = GONE.model_copy(update={"confidence": 0.95})
    for before, outcome, confidence in (
        (SHOWN, Outcome.RESOLVED, 0.95),
        (quiet, Outcome.NOT_REPRODUCED, None),
    ):
        answers: list[steps.StepResult] = [built(), before, built(), sure]
        _, row = await came_to(store, TRIAL, answers)
        assert (row.outcome, row.confidence) == (outcome, confidence)


async def test_a_finding_of_an_earlier_step_stands_in_the_way(store: JobStore) -> None:
    answers = [built(), SHOWN, built(findings=[WEAKER]), GONE]
    view, row = await came_to(store, TRIAL, answers)
    assert view.verdict == steps.Verdict.NO_CRASH
    assert view.sentence == "Not resolved: no KASAN"
    assert row.reason == "no KASAN"


async def test_a_job_that_ends_early_says_why(store: JobStore) -> None:
    view, row = await came_to(store, TRIAL, [built(), SHOWN, badly("user")])
    assert (view.state, view.verdict, view.outcome) == (
        State.FAILED,
        steps.Verdict.SAME_CRASH,
        Outcome.REFUSED,
    )
    assert row.reason == "step 2 (build) failed: it broke"
    view, row = await came_to(store, job(), [badly("user")])
    assert (row.verdict, row.reason) == (None, "step 0 (build) failed: it broke")
    submitted, _ = await store.submit(TRIAL, None, "me")
    await end(store, built(), SHOWN)
    assert (await store.get(submitted.id)).verdict is None  # not before its end
    await store.abort(submitted.id)
    row = await row_of(store, submitted.id)
    assert (row.verdict, row.outcome, row.reason) == (None, Outcome.ABORTED, None)
    view, row = await came_to(store, job(), [built()])
    assert (row.state, row.verdict) == (State.SUCCEEDED, None)
    assert view.sentence == "Built: Linux 6.1.0, 1 object compiled"


async def test_a_check_counts_what_compiles(store: JobStore) -> None:
    patch = steps.Patch(edits=[steps.Edit(file="a.c", original="a", replacement="b")])
    check = steps.CheckSpec(source=BUILD.source, config=BUILD.config, patches=[patch])
    result = checked([steps.PatchCheck(name="p", outcome=steps.PatchOutcome.COMPILES, seconds=1.0)])
    view, _ = await came_to(store, job(check), [result])
    assert (view.verdict, view.sentence) == (None, "Compiles: 1 of 1 patches compile")
    view, _ = await came_to(store, job(check), [checked([])])
    assert view.sentence == "No answer: the check has an answer for 0 of 1"


async def test_each_patch_of_a_group_has_one_row(store: JobStore) -> None:
    def patch(name: str, to: str) -> steps.Patch:
        return steps.Patch(name=name, edits=[steps.Edit(file="a.c", original="a", replacement=to)])

    def check(name: str, outcome: steps.PatchOutcome) -> steps.PatchCheck:
        return steps.PatchCheck(name=name, outcome=outcome, seconds=1.0)

    bad = steps.PatchOutcome.DOES_NOT_COMPILE
    patches = [patch("good", "b\nc"), patch("bad", "d"), patch("also-good", "b\nc")]
    request = BUG.check(patches).model_copy(update={"group": "g"})
    good = steps.PatchOutcome.COMPILES
    checks = checked([check("good", good), check("bad", bad), check("also-good", good)])
    await store.submit(request, None, "me")
    await end(store, checks)
    rows = (await store.group_patches("me", "g")).patches
    assert [(row.patch, row.outcome, row.added, row.removed) for row in rows] == [
        ("good", Outcome.COMPILES, 2, 1),
        ("bad", Outcome.DOES_NOT_COMPILE, 1, 1),
        ("also-good", Outcome.COMPILES, 2, 1),
    ]
    assert rows[0].change == rows[2].change != rows[1].change
    tags = [tag for tag in TRIAL.tags if not tag.startswith("patch=")]
    tried = TRIAL.model_copy(update={"tags": [*tags, "patch=good"]})
    tried_job, _ = await store.submit(tried, None, "me")
    rows = (await store.group_patches("me", "g")).patches
    assert [(row.patch, row.outcome) for row in rows] == [
        ("bad", Outcome.DOES_NOT_COMPILE),
        ("also-good", Outcome.COMPILES),
        ("good", Outcome.WAITING),
    ]
    await end(store, built(), SHOWN, built(findings=[WEAKER]), GONE)
    row = await row_of(store, tried_job.id)
    assert (row.patch, row.bug, row.outcome) == ("good", BUG.name, Outcome.NOT_RESOLVED)
    assert (row.files, row.evidence[Check.CONTROLS], row.evidence[Check.FINDINGS]) == (
        1,
        True,
        False,
    )
    assert row.evidence[Check.BALANCE] is None


def compiling(count: int, *tags: str) -> tuple[JobRequest, steps.StepResult]:
    """Return a job that checks so many patches, and its result: all compile."""
    edits = [steps.Edit(file="a.c", original="a", replacement="b")]
    patches = [steps.Patch(name=f"p{number}", edits=edits) for number in range(count)]
    request, good = BUG.check(patches), steps.PatchOutcome.COMPILES
    checks = [steps.PatchCheck(name=patch.name, outcome=good, seconds=1.0) for patch in patches]
    named = {"group": "g", "tags": [*request.tags, *tags]}
    return request.model_copy(update=named), checked(checks)


async def test_a_patch_is_not_tried_by_a_check_with_its_tag(store: JobStore) -> None:
    request, result = compiling(1, "patch=p0")
    await came_to(store, request, [result])


async def test_a_patch_whose_name_others_have_is_not_taken_for_the_tried_one(
    store: JobStore,
) -> None:
    edits = [steps.Edit(file="a.c", original="a", replacement="b")]
    names, good = ["p", "p", "of two words"], steps.PatchOutcome.COMPILES
    request = BUG.check([steps.Patch(name=name, edits=edits) for name in names])
    checks = [steps.PatchCheck(name=name, outcome=good, seconds=1.0) for name in names]
    await store.submit(request.model_copy(update={"group": "g"}), None, "me")
    await end(store, checked(checks))
    for name in names[1:]:
        tags = [f"bug={BUG.name}", patch_tag(name)]
        await store.submit(TRIAL.model_copy(update={"tags": tags}), None, "me")
    rows = (await store.group_patches("me", "g")).patches
    assert [(row.patch, row.outcome) for row in rows] == [
        *[("p", Outcome.COMPILES)] * 2,
        *(("p", Outcome.WAITING), ("of_two_words", Outcome.WAITING)),
    ]


async def test_a_page_is_bounded_though_each_patch_repeats_the_tags_of_its_job(
    store: JobStore,
) -> None:
    request, result = compiling(200, *(f"{number:0100}" for number in range(40)))
    jobs = [(await store.submit(request, None, "me"))[0].id for _ in range(2)]
    await end(store, result)
    await end(store, result)
    page = await store.group_patches("me", "g")
    assert ({row.job for row in page.patches}, page.next) == ({jobs[0]}, str(jobs[0]))


async def test_no_result_stops_the_end_of_its_job(store: JobStore) -> None:
    evil = ran(
        steps.Verdict.SAME_CRASH, "=\x00\ud7ff\x1b[2J\n" + "a" * 9000, reason="\x00" * 200_000
    )
    view, row = await came_to(store, job(BUILD, reproduce()), [built(), evil])
    assert (view.state, view.verdict) == (State.SUCCEEDED, steps.Verdict.SAME_CRASH)
    assert row.title is not None
    assert (len(row.title), row.title.isprintable()) == (1000, True)
    assert row.reason is not None
    assert row.reason.isprintable()
    assert row.seconds >= 0
    request, _ = compiling(1)
    bad = steps.PatchOutcome.DOES_NOT_APPLY
    refused = steps.PatchCheck(name="\x1b[2Jp", outcome=bad, reason="\x00\x1b[2Jx", seconds=1.0)
    _, row = await came_to(store, request, [checked([refused])])
    assert (row.patch, row.reason) == (" [2Jp", "  [2Jx")


BROKEN = 'UPDATE steps SET result = \'{"kind": "build"}\' WHERE number = 2'


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["unreadable", "long"])
async def test_nothing_is_resolved_by_results_that_cannot_be_read(
    store: JobStore, what: str
) -> None:
    long = [WEAKER.model_copy(update={"message": "a" * 1000})] * 5000
    submitted, _ = await store.submit(TRIAL, None, "me")
    await end(store, built(), SHOWN, built(findings=long if what == "long" else []))
    claimed, _ = await store.claim(claim_of())
    if what == "unreadable":
        async with store.database.write() as connection:
            await connection.execute(text(BROKEN))
    await store.finish(claimed.assignments[0].lease, AttemptEnding(result=GONE))
    row = await row_of(store, submitted.id)
    assert (row.state, row.verdict) == (State.SUCCEEDED, None)
    assert row.outcome is Outcome.INCONCLUSIVE
    assert row.reason is not None
    assert row.reason.startswith("its results cannot be read: ")


async def test_a_job_fails_for_its_own_reason_whatever_its_results_are(store: JobStore) -> None:
    submitted, _ = await store.submit(TRIAL, None, "me")
    await end(store, built(), SHOWN, built())
    async with store.database.write() as connection:
        await connection.execute(text(BROKEN))
    await store.claim(claim_of())  # which fails: its input cannot be read
    row = await row_of(store, submitted.id)
    assert (row.state, row.outcome) == (State.FAILED, Outcome.INCONCLUSIVE)
    assert row.reason is not None
    assert row.reason.startswith("step 3 (reproduce) failed: ")
