"""What measured runs prove: computed exactly, for every true crash rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import (
    Calibration,
    InstanceOutcome,
    InstanceResult,
    Measure,
    ReproduceResult,
    Verdict,
)
from kgym.bugs.calibration import (
    CONFIDENCES,
    SHORTEST,
    effort,
    measured,
    planned,
    pooled,
    quantile,
    rate_at_least,
    unseen,
)
from tests.results import ran

RUNS = st.integers(1, 20)
RATES = st.floats(0, 1)


def known(runs: int, crashed: int, time: float = 4) -> Calibration:
    return Calibration(runs=runs, crashed=crashed, time=time, accelerator="tcg")


def chance(runs: int, crashed: int, rate: float) -> float:
    """Return the chance that so many of the runs crash."""
    return math.comb(runs, crashed) * rate**crashed * (1 - rate) ** (runs - crashed)


def truly_unseen(runs: int, crashed: int, rate: float, survived: int) -> float:
    """Return the true chance that the bug does not show in new runs.

    Some runs survived: the new ones last as long, so each misses it with 1 - rate.
    All crashed: the new ones last as long as the longest, in which a share of
    rate * B crashes, where B is the largest of `runs` uniform numbers; then the
    mean of (1 - rate * B)^survived, by the midpoint rule.
    """
    if crashed < runs:
        return (1 - rate) ** survived
    points = [((number + 0.5) / 500) ** (1 / runs) for number in range(500)]
    return sum((1 - rate * point) ** survived for point in points) / 500


@given(RUNS, st.integers(1, 20), RATES)
def test_on_average_the_bound_is_not_below_the_truth(runs: int, survived: int, rate: float) -> None:
    truth = bound = 0.0
    for crashed in range(runs + 1):
        weight = chance(runs, crashed, rate)
        truth += weight * truly_unseen(runs, crashed, rate, survived)
        bound += weight * (unseen(known(runs, crashed), survived) if crashed else 1.0)
    assert truth <= bound + 1e-3


@given(RUNS, RATES, st.sampled_from(CONFIDENCES))
def test_calibrating_and_then_missing_the_bug_is_as_rare_as_promised(
    runs: int, rate: float, confidence: float
) -> None:
    missed = 0.0
    for crashed in range(1, runs + 1):
        wanted = effort(known(runs, crashed), confidence)
        if wanted is not None:
            weight = chance(runs, crashed, rate)
            missed += weight * truly_unseen(runs, crashed, rate, wanted.instances)
    assert missed <= 1 - confidence + 1e-3


@given(st.integers(1, 4), st.integers(1, 6), RATES, st.sampled_from(CONFIDENCES))
def test_measuring_in_passing_flatters_nobody(
    first: int, more: int, rate: float, confidence: float
) -> None:
    """Only if one of the first instances crashes soon, the others are run as well."""
    missed = 0.0
    for crashed_first in range(1, first + 1):
        for crashed_more in range(more + 1):
            weight = chance(first, crashed_first, rate) * chance(more, crashed_more, rate)
            runs, crashed = first + more, crashed_first + crashed_more
            wanted = effort(known(runs, crashed), confidence)
            if wanted is not None:
                missed += weight * truly_unseen(runs, crashed, rate, wanted.instances)
    assert missed <= 1 - confidence + 1e-3


@given(RUNS, st.data())
def test_more_runs_prove_more(runs: int, data: st.DataObject) -> None:
    crashed = data.draw(st.integers(1, runs))
    values = [unseen(known(runs, crashed), survived) for survived in range(10)]
    assert values[0] == 1
    assert values == sorted(values, reverse=True)
    assert unseen(known(runs + 1, crashed + 1), 3) <= unseen(known(runs, crashed), 3)
    assert unseen(known(runs + 1, crashed), 3) >= unseen(known(runs, crashed), 3)


@given(RUNS, st.data(), st.sampled_from(CONFIDENCES))
def test_the_effort_is_the_least_that_suffices(
    runs: int, data: st.DataObject, confidence: float
) -> None:
    crashed = data.draw(st.integers(1, runs))
    wanted = effort(known(runs, crashed), confidence)
    if wanted is None:
        assert crashed == 1
        return
    assert unseen(known(runs, crashed), wanted.instances) <= 1 - confidence
    assert unseen(known(runs, crashed), wanted.instances - 1) > 1 - confidence


@pytest.mark.parametrize(
    ("runs", "crashed", "instances"),
    [(1, 1, (19, 99)), (2, 2, (5, 13)), (5, 5, (2, 4)), (10, 10, (2, 3)), (10, 5, (7, 12))],
)
def test_the_effort_in_numbers(runs: int, crashed: int, instances: tuple[int, int]) -> None:
    efforts = [effort(known(runs, crashed), confidence) for confidence in CONFIDENCES]
    assert tuple(needed.instances for needed in efforts if needed) == instances


def test_a_run_lasts_longer_than_the_longest_time_to_a_crash() -> None:
    assert (needed := effort(known(5, 5, 8), 0.95)) is not None
    assert needed.time == 12
    assert (needed := effort(known(5, 5, 0.1), 0.95)) is not None
    assert needed.time == SHORTEST


def test_where_some_survived_a_run_lasts_as_long_as_they_did() -> None:
    assert (needed := effort(known(5, 4, 60), 0.95)) is not None
    assert needed.time == 60


def test_three_further_crashes_make_two_instances_enough() -> None:
    needed = planned(known(2 + Measure().more, 5, 2), 0.95, 2, 120)
    assert needed is not None
    assert (needed.instances, needed.time) == (2, SHORTEST)


@pytest.mark.parametrize(
    ("measured", "is_planned"),
    [
        (None, False),
        (known(2, 2), False),  # for five runs, each as long as the slower of two crashes
        (known(3, 3), True),
        (known(5, 2, 30), True),  # 16 runs of 30 s
        (known(5, 1, 30), False),  # 95 of them
        (known(10, 3, 120), True),  # 16 of 120 s, where the bundle asks for 2 of them
    ],
)
def test_a_fix_is_tried_by_what_is_known_unless_it_takes_too_long(
    measured: Calibration | None, is_planned: bool
) -> None:
    assert (planned(measured, 0.95, 2, 120) is not None) is is_planned


@given(st.integers(1, 40), st.data())
def test_the_lower_limit_of_the_rate_is_clopper_and_pearsons(
    runs: int, data: st.DataObject
) -> None:
    crashed = data.draw(st.integers(1, runs))
    low = rate_at_least(crashed, runs)
    assert 0 < low < crashed / runs
    tail = sum(chance(runs, count, low) for count in range(crashed, runs + 1))
    assert tail == pytest.approx(0.05, abs=1e-6)


def test_the_lower_limit_in_numbers() -> None:
    assert rate_at_least(0, 10) == 0
    assert rate_at_least(10, 10) == pytest.approx(0.05**0.1)


def test_quantiles_are_times_that_were_seen() -> None:
    times = [1.0, 2.0, 3.0, 4.0, 50.0]
    assert [quantile(times, share) for share in (0, 0.5, 0.9, 1)] == [1, 3, 50, 50]


# --- from a step's result ----------------------------------------------------------------------

TITLE = "WARNING in f"


def instance(
    outcome: InstanceOutcome, seconds: float | None = None, title: str | None = None, runs: int = 1
) -> InstanceResult:
    return InstanceResult(number=0, outcome=outcome, run_seconds=seconds, title=title, runs=runs)


def result(
    *instances: InstanceResult, time: float = 20, accelerator: str = "tcg"
) -> ReproduceResult:
    return ran(
        Verdict.SAME_CRASH,
        title=TITLE,
        completed=0,
        requested=len(instances),
        time=time,
        accelerator=accelerator,
        instances=list(instances),
    )


def crash(seconds: float, title: str = TITLE) -> InstanceResult:
    return instance(InstanceOutcome.CRASH, seconds, title)


def test_all_runs_crashed() -> None:
    measurement = measured(result(crash(1), crash(3), crash(2)), [TITLE])
    assert measurement == known(3, 3, 3)


def test_a_run_that_survived_counts_for_the_whole_time() -> None:
    assert measured(result(crash(1), instance(InstanceOutcome.SURVIVED, 20.2)), [TITLE]) == known(
        2, 1, 20
    )


def test_a_run_that_another_stopped_counts_if_it_had_lasted_as_long() -> None:
    stopped = [instance(InstanceOutcome.STOPPED, seconds) for seconds in (1.5, 0.5, None)]
    assert measured(result(crash(1), *stopped), [TITLE]) == known(2, 1, 1)


def test_a_run_that_was_stopped_before_it_began_does_not_count() -> None:
    stopped = [instance(InstanceOutcome.STOPPED, seconds) for seconds in (0.0, None)]
    waited = instance(
        InstanceOutcome.STOPPED, 7, runs=0
    )  # the runner was there, the program had not begun
    measurement = measured(result(crash(0.0), *stopped, waited), [TITLE])
    assert measurement is not None
    assert (measurement.runs, measurement.crashed) == (1, 1)


def test_another_crash_counts_as_a_run_that_did_not_show_the_bug() -> None:
    measurement = measured(result(crash(1), crash(0.2, "BUG: unrelated")), [TITLE])
    assert measurement == known(2, 1, 1)


def test_what_did_not_run_does_not_count() -> None:
    failed = [
        instance(InstanceOutcome.BOOT_FAILED),
        instance(InstanceOutcome.SSH_LOST, 7),
        instance(InstanceOutcome.ENDED_EARLY, 30),
    ]
    assert measured(result(crash(1), *failed), [TITLE]) == known(1, 1, 1)


def test_a_bug_that_did_not_show_tells_nothing() -> None:
    assert measured(result(instance(InstanceOutcome.SURVIVED, 20)), [TITLE]) is None


def test_calibrations_of_one_bug_are_pooled() -> None:
    good = result(*[crash(2)] * 9, instance(InstanceOutcome.SURVIVED, 20))
    quick, silent = result(crash(1)), result(instance(InstanceOutcome.SURVIVED, 30), time=30)
    assert pooled([quick, good], [TITLE]) == known(11, 10, 20)
    assert pooled([quick, silent, good], [TITLE]) == known(12, 10, 30)
    assert pooled([silent], [TITLE]) is None


def test_runs_that_were_over_before_the_slowest_crash_are_left_out_with_their_crashes() -> None:
    short = result(crash(0.5), instance(InstanceOutcome.SURVIVED, 1), time=1)
    assert pooled([short, result(crash(3), crash(4))], [TITLE]) == known(2, 2, 4)


def test_only_runs_of_one_accelerator_are_pooled() -> None:
    other = result(crash(2), crash(3), accelerator="kvm")
    assert pooled([result(crash(1)), other], [TITLE]) == known(1, 1, 1)


def test_of_a_trial_only_what_no_crash_decided_is_pooled() -> None:
    """The first instances had to show the bug, or nothing more would have been run."""
    survived = instance(InstanceOutcome.SURVIVED, 30)
    instances = [
        instance.model_copy(update={"number": number})
        for number, instance in enumerate([crash(1), crash(9), crash(2), survived, crash(3)])
    ]
    passing = result(*instances, time=30).model_copy(update={"sample": [2, 3, 4]})
    assert measured(passing, [TITLE]) == known(5, 4, 30)
    assert pooled([passing], [TITLE]) == known(3, 2, 30)
    stopped = result(crash(70), time=120).model_copy(update={"sample": []})
    assert pooled([stopped, passing, result(crash(4))], [TITLE]) == known(4, 3, 30)
    assert pooled([stopped], [TITLE]) is None
