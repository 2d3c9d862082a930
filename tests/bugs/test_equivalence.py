"""Behavioural equivalence: its figures, its jobs, and what does not change by it."""

import pytest
from pydantic import ValidationError

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    Equivalence,
    Evidence,
    Reproducer,
    ReproduceResult,
    ReproduceSpec,
    StepRef,
    VariantRun,
    Verdict,
)
from kgym.bugs import bundle
from kgym.bugs.bug import BEFORE, REFERENCE, TrialOptions
from kgym.bugs.conclusion import conclusion, resolution_of
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.sweep_rows import Pair, tried
from kgym.bugs.trial_result import TrialResult
from tests.bugs.test_conclusion import as_listed, job_of
from tests.results import GOOD, built, ran

BUG = bundle.load("watch-queue-filter")
COMPARES = TrialOptions(variants=True, compare_fix=True)
QUIET = VariantRun(ran=100)
COMPARED = VariantRun(ran=100, equivalence=Equivalence(compared=200, same=150, crashed=[7]))


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
    run = VariantRun(ran=0, equivalence=Equivalence(compared=compared, same=same))
    alike = BehaviouralEquivalence.of(run)
    assert alike is not None
    assert alike.low is not None
    assert alike.high is not None
    assert alike.value == pytest.approx(same / compared, abs=1e-4)
    assert alike.equivalent is equivalent
    assert low <= alike.low <= same / compared <= alike.high <= 1


@pytest.mark.parametrize("reference", [ran(), ran(Verdict.INCONCLUSIVE), ran(title="KASAN: bad")])
@pytest.mark.parametrize("listed", [True, False])
def test_the_fix_decides_nothing_and_is_in_no_words_that_an_agent_reads(
    reference: ReproduceResult, listed: bool
) -> None:
    apart, compared = (as_listed(trial(run, reference), listed) for run in (QUIET, COMPARED))
    assert conclusion(compared) == conclusion(apart)
    assert conclusion(compared).resolved is True
    assert resolution_of(compared) == resolution_of(apart)
    results = [TrialResult.of(BUG.name, job).after for job in (compared, apart)]
    assert results[0] is not None
    assert results[1] is not None
    assert results[0].evidence_line == results[1].evidence_line
    assert results[0].findings == results[1].findings
    alike = results[0].behavioural_equivalence
    assert str(alike) == (
        "150 of 200 variants do the same as with the known fix: 75.0% (68.4% to 80.8%), 1 crash"
    )
    row = tried(Pair(BUG.name, "fix"), compared, ())
    assert row.behavioural_equivalence == alike
    assert "behavioural_equivalence" not in KernelRun.model_fields


def test_the_fix_runs_once_for_all_trials() -> None:
    assert BUG.fix is not None
    shown = BUG.shown(COMPARES)
    assert [step.name for step in shown.steps][-1] == REFERENCE
    assert BUG.reference_tag in shown.tags
    for reference, job in ((None, 7), (5, 5)):
        known = TrialOptions(variants=True, compare_fix=True, learned=5, reference=reference)
        last = BUG.trial(BUG.fix, 7, known).steps[-1]
        assert isinstance(last, ReproduceSpec)
        assert last.reference == StepRef(job=job, step=REFERENCE)
    assert REFERENCE not in [step.name for step in BUG.shown(known).steps]


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
