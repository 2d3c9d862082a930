"""Behavioural equivalence: its figures, its jobs, and what does not change by it."""

import pytest
from pydantic import ValidationError

from kgym.api.jobs import JobRequest, JobView
from kgym.api.outcomes import Outcome
from kgym.api.steps import (
    ENGINE,
    Equivalence,
    Evidence,
    LearnedVariants,
    Pace,
    Reproducer,
    ReproduceResult,
    ReproduceSpec,
    StepRef,
    VariantRun,
    Verdict,
)
from kgym.bugs import bundle, earlier_jobs
from kgym.bugs.bug import BEFORE, REFERENCE, TrialOptions
from kgym.bugs.conclusion import conclusion, resolution_of
from kgym.bugs.equivalence import LEAST, THRESHOLD, BehaviouralEquivalence
from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.sweep_rows import Pair, tried
from kgym.bugs.trial_result import TrialResult
from tests.bugs.test_conclusion import as_listed, job_of
from tests.conftest import ROOT
from tests.results import GOOD, built, job_view, ran

BUG = bundle.load("watch-queue-filter")
COMPARES = TrialOptions(variants=True, compare_fix=True)
QUIET = VariantRun(ran=100)
LEARNED = LearnedVariants(engine=ENGINE, pace=Pace(calls=2, milliseconds=1, pause=1))
APART = Equivalence(same=150, crashed=[7], different=list(range(8, 57)), dropped=3)
COMPARED = VariantRun(ran=100, equivalence=APART)


def trial(variants: VariantRun, reference: ReproduceResult) -> JobView:
    """Return the job that tries the bug's fix, and compares it with the kernel with the fix."""
    assert BUG.fix is not None
    before = ran(Verdict.SAME_CRASH, evidence=Evidence())
    after = ran(evidence=GOOD, variants=variants)
    results = [built(), before, built(), reference, built(), after]
    return job_of(list(zip(BUG.job(BUG.fix, COMPARES).steps, results, strict=True)))


@pytest.mark.parametrize(
    ("same", "compared", "equivalent", "low"),
    [
        (200, 200, True, 0.98),
        (190, 200, True, 0.90),
        (189, 200, False, 0.90),
        (19, 19, None, 0.82),  # too few to say yes
        (0, 4, False, 0.0),  # but not to say no
    ],
)
def test_a_share_has_an_interval_and_a_threshold(
    same: int, compared: int, equivalent: bool | None, low: float
) -> None:
    apart = list(range(compared - same))
    run = VariantRun(ran=0, equivalence=Equivalence(same=same, different=apart))
    alike = BehaviouralEquivalence.of(run)
    assert alike is not None
    assert alike.low is not None
    assert alike.high is not None
    assert alike.value == pytest.approx(same / compared, abs=1e-4)
    assert alike.equivalent is equivalent
    assert low <= alike.low <= same / compared <= alike.high <= 1


def test_the_page_of_figures_states_the_threshold() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert f"equivalence is at least {THRESHOLD}, of at least {LEAST} variants" in page


@pytest.mark.parametrize("reference", [ran(), ran(Verdict.INCONCLUSIVE), ran(title="KASAN: bad")])
@pytest.mark.parametrize("listed", [True, False])
def test_the_fix_decides_nothing_and_is_in_no_words_that_an_agent_reads(
    reference: ReproduceResult, listed: bool
) -> None:
    apart, compared = (as_listed(trial(run, reference), listed) for run in (QUIET, COMPARED))
    assert conclusion(compared) == conclusion(apart)
    assert conclusion(compared).outcome is Outcome.RESOLVED
    assert resolution_of(compared) == resolution_of(apart)
    results = [TrialResult.of(BUG.name, job).after for job in (compared, apart)]
    assert results[0] is not None
    assert results[1] is not None
    assert results[0].evidence_line == results[1].evidence_line
    assert results[0].findings == results[1].findings
    alike = results[0].behavioural_equivalence
    assert str(alike) == (
        "150 of 200 variants do the same as with the known fix: 75.0% (68.4% to 80.8%), 1 crash;"
        " 3 others have no steady result"
    )
    row = tried(Pair(BUG.name, "fix"), compared, ())
    assert row.behavioural_equivalence == alike
    assert "behavioural_equivalence" not in KernelRun.model_fields


def test_the_fix_runs_once_for_all_trials() -> None:
    assert BUG.fix is not None
    shown = BUG.shown(COMPARES)
    assert [step.name for step in shown.steps][-1] == REFERENCE
    assert BUG.reference_tag in shown.tags
    for learned, job in ((None, 7), (5, 5)):
        known = TrialOptions(variants=True, compare_fix=True, learned=learned)
        last = BUG.trial(BUG.fix, 7, known).steps[-1]
        assert isinstance(last, ReproduceSpec)
        assert last.reference == StepRef(job=job, step=REFERENCE)
    assert REFERENCE not in [step.name for step in BUG.shown(known).steps]


def learned_by(request: JobRequest) -> int | None:
    """Return the job whose variants a trial uses, if a job of this request has ended."""
    results = {BEFORE: {"learned": LEARNED}, REFERENCE: {"reference": LEARNED}}
    steps = [
        {"name": step.name, "kind": step.kind, "result": ran(**results.get(step.name or "", {}))}
        for step in request.steps
    ]
    job = job_view(steps).model_copy(update={"tags": request.tags})
    return earlier_jobs.informed_by([job], BUG, COMPARES).learned


def test_a_job_that_ran_the_fix_is_used_and_a_calibration_is_not() -> None:
    assert learned_by(BUG.shown(COMPARES)) == 7
    assert learned_by(BUG.shown(TrialOptions(variants=True))) is None


@pytest.mark.attack
def test_a_job_with_a_true_tag_whose_later_steps_have_the_names_is_not_used() -> None:
    shown = BUG.shown(COMPARES)
    renamed = [{**step.model_dump(), "name": f"true_{step.name}"} for step in shown.steps]
    for step in renamed:
        for name in ("build", "learned"):
            if step.get(name):
                step[name] = {"step": f"true_{step[name]['step']}"}
    own = [step.model_dump() for step in shown.steps]
    forged = JobRequest.model_validate({"steps": [*renamed, *own], "tags": shown.tags})
    assert learned_by(forged) is None


@pytest.mark.parametrize(
    "change",
    [
        {"learned": StepRef(job=3, step=BEFORE)},  # of another job, which may have learned anything
        {"build": StepRef(job=3, step="build_reference")},
        {"reproducer": Reproducer(text="int main(void) { return 1; }")},
        {"variants": 0},
    ],
)
def test_no_other_job_passes_for_one_that_ran_the_fix(change: dict[str, object]) -> None:
    request = BUG.shown(COMPARES)
    forged = [
        step.model_copy(update=change) if step.name == REFERENCE else step for step in request.steps
    ]
    with pytest.raises(ValidationError, match="reference="):
        JobRequest.model_validate({"steps": forged, "tags": request.tags})
