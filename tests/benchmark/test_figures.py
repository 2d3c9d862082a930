"""The figures, held against the published tables and against counts made by hand."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.bench.attempt_record import AttemptRecord, Outcome, Overlap, Setup, Votes
from kgym.bench.comparison import PairedDifference, across, holm, paired
from kgym.bench.figures import Figure, Measured, Results, SetupFigures, solves
from kgym_benchmark.judge.judge import Agreement
from tests.tables import json_rows

ONE, OTHER = Setup(agent="one", model="m"), Setup(agent="other", model="m")


def attempt(
    bug: str = "b",
    run: int = 1,
    outcome: Outcome = Outcome.PASS,
    setup: Setup = ONE,
    **known: object,
) -> AttemptRecord:
    return AttemptRecord.model_validate(
        {"bug": bug, "run": run, "outcome": outcome, "setup": setup, "diff": "x", **known}
    )


def bugs(count: int) -> list[str]:
    return [f"bug{number}" for number in range(count)]


def figures_of(attempts: Iterable[AttemptRecord], names: Sequence[str], k: int = 1) -> SetupFigures:
    """Return the figures of ONE, which must have enough runs."""
    figures = Results(attempts, names).figures(ONE, k)
    assert figures is not None
    return figures


def value(figure: Measured | None) -> float:
    assert figure is not None
    return figure.value


def by_setup(outcomes: Mapping[Setup, Iterable[Outcome | bool]], names: Sequence[str]) -> Results:
    """Return one attempt of each setup on each bug: an outcome, or whether it passes."""
    passed = {True: Outcome.PASS, False: Outcome.TRIGGER}
    return Results(
        [
            attempt(bug, setup=setup, outcome=passed[end] if isinstance(end, bool) else end)
            for setup, ends in outcomes.items()
            for bug, end in zip(names, ends, strict=True)
        ],
        names,
    )


def compared(results: Results, figure: Figure) -> PairedDifference:
    difference = paired(results, ONE, OTHER, figure, 1)
    assert difference is not None
    return difference


# RGym, Tables 1, 4 and 5: one attempt for each of 143 bugs. The last three, kGym's agents, left
# bugs without any answer, which its rates of bad patches leave out; here they count as bad.
@pytest.mark.parametrize(
    ("counts", "passed", "bad"),
    json_rows(__file__, "rgym_counts.jsonl"),
    ids=[
        *("SimpleAgent-nobic", "SimpleAgent", "Function-Exploration", "Opus 4.1", "GPT-5"),
        *("kGym-oracle, GPT-4-turbo", "kGym-oracle, GPT-4o", "functionwise"),
    ],
)
def test_rgyms_rates_follow_from_its_counts(
    counts: dict[str, int], passed: float, bad: float
) -> None:
    ended = [Outcome(name) for name, count in counts.items() for _ in range(count)]
    silent = [Outcome.BAD] * (143 - len(ended))
    figures = by_setup({ONE: [*ended, *silent]}, bugs(143)).figures(ONE, 1)
    assert figures is not None
    # The paper cuts some of its figures off after the second decimal instead of rounding them.
    assert value(figures.passed[Figure.CRR]) == pytest.approx(passed, abs=1e-4)
    answered_badly = figures.outcomes.get(Outcome.BAD, 0) - len(silent)
    assert answered_badly / len(ended) == pytest.approx(bad, abs=1e-4)


def test_what_rgym_gains_by_feedback_is_pass_at_three() -> None:
    # Section 3.1: of 143 bugs 34 are solved in the first attempt, 8 in the second, 12 in the third.
    names = bugs(143)
    solved = dict(zip(names, [1] * 34 + [2] * 8 + [3] * 12, strict=False))
    tried = [
        attempt(bug, run, Outcome.PASS if solved.get(bug, 9) <= run else Outcome.TRIGGER)
        for bug in names
        for run in (1, 2, 3)
    ]
    for k, share in ((1, 0.2377), (2, 0.2937), (3, 0.3776)):
        crr = figures_of(tried, names, k).passed[Figure.CRR]
        assert value(crr) == pytest.approx(share, abs=1e-4)


def test_the_judges_agreement_follows_from_its_counts() -> None:
    # Live-kBench, Table 10
    agreement = Agreement(true_positive=20, true_negative=51, false_positive=3, false_negative=5)
    figures = (agreement.accuracy, agreement.precision, agreement.recall, agreement.f1)
    assert figures == pytest.approx((0.8987, 0.8696, 0.8000, 0.8333), abs=5e-5)
    pairs = [(True, True)] * 20 + [(False, False)] * 51 + [(True, False)] * 3 + [(False, True)] * 5
    assert Agreement.of(pairs) == agreement
    assert Agreement.of([]).accuracy is None


@pytest.mark.thorough
def test_gains_are_given_as_live_kbench_gives_them() -> None:
    # Table 1: by how much of the second figure the first is more.
    ends = {
        setup: [n < passed for n in range(10_000)] for setup, passed in ((ONE, 8558), (OTHER, 7154))
    }
    difference = compared(by_setup(ends, bugs(10_000)), Figure.CRR)
    assert difference.ratio == pytest.approx(0.1963, abs=2e-4)


def test_pass_takes_the_best_of_the_first_runs_and_mean_their_mean() -> None:
    ends = {"a": [Outcome.TRIGGER, Outcome.PASS, Outcome.PASS], "b": [Outcome.BAD] * 3}
    results = Results(
        [attempt(bug, run, end) for bug, all_ in ends.items() for run, end in enumerate(all_, 1)],
        list(ends),
    )
    figures = [results.figures(ONE, k) for k in (1, 2, 3)]
    assert [
        (value(f.passed[Figure.CRR]), value(f.mean[Figure.CRR])) for f in figures if f is not None
    ] == [(0, 0), (0.5, 0.25), (0.5, pytest.approx(1 / 3))]


def test_there_is_no_figure_unless_every_bug_has_as_many_runs() -> None:
    results = Results([attempt("a", 1), attempt("a", 2), attempt("b", 1)], ["a", "b"])
    assert results.runs(ONE) == 1
    assert results.figures(ONE, 1) is not None
    assert results.figures(ONE, 2) is None
    assert results.figures(OTHER, 1) is None
    assert Results([], []).figures(ONE, 1) is None


def test_a_patch_counts_as_equivalent_only_if_it_resolves_and_more_votes_say_so() -> None:
    votes = {"yes": (5, 4), "tie": (4, 4), "no": (0, 9), "crashes": (9, 0)}
    attempts = [
        attempt(
            bug,
            outcome=Outcome.TRIGGER if bug == "crashes" else Outcome.PASS,
            votes=Votes(yes=yes, no=no),
        )
        for bug, (yes, no) in votes.items()
    ]
    assert value(figures_of(attempts, list(votes)).passed[Figure.EPR]) == 0.25


def test_a_patch_is_equivalent_by_execution_if_it_is_clean_and_nearly_all_variants_agree() -> None:
    alike, apart = Overlap(common=40, all=40), Overlap(common=10, all=40)
    judge: dict[str, object] = {"votes": Votes(yes=9, no=0)}
    attempts = [
        attempt("alike", clean=True, equivalence=alike, **judge),
        attempt("apart", clean=True, equivalence=apart, **judge),
        attempt("unclean", clean=False, equivalence=alike, **judge),
        attempt("crashes", outcome=Outcome.TRIGGER, clean=False, **judge),
    ]
    figures = figures_of(attempts, [each.bug for each in attempts])
    assert value(figures.passed[Figure.EPR_BY_EXECUTION]) == 0.25
    assert value(figures.passed[Figure.BEHAVIOURAL_EQUIVALENCE]) == (1 + 0.25 + 1) / 4
    assert (figures.twice_judged, figures.judged_alike) == (3, 1)
    # Between the two bounds.
    bounds = (Figure.EPR_BY_EXECUTION, Figure.CLEAN, Figure.CRR)
    assert [value(figures.passed[figure]) for figure in bounds] == [0.25, 0.5, 0.75]
    unknown = figures_of([*attempts, attempt("unknown", clean=True)], ["unknown"])
    assert unknown.passed[Figure.EPR_BY_EXECUTION] is None


def test_what_was_not_found_out_is_not_taken_for_a_failure() -> None:
    figures = figures_of([attempt("a"), attempt("b", votes=Votes(yes=9, no=0))], ["a", "b"])
    assert figures.passed[Figure.EPR] is None
    assert figures.passed[Figure.FILE_IOU] is None
    assert figures.dollars is None
    assert figures.passed[Figure.CRR] is not None


def test_an_attempt_without_a_patch_has_changed_nothing() -> None:
    both = Overlap(common=1, all=2)
    changed = attempt("a", files=both, functions=both)
    figures = figures_of([changed, attempt("b", outcome=Outcome.BAD, diff=None)], ["a", "b"])
    assert value(figures.mean[Figure.FILE_IOU]) == 0.25


def test_costs_are_told_by_bug_and_by_resolved_bug_with_those_of_kernels() -> None:
    figures = figures_of(
        [
            attempt("a", 1, dollars=1, kernel_dollars=0.5, seconds=10, kernel_runs=2),
            attempt("a", 2, Outcome.BAD, dollars=1, seconds=20, kernel_runs=0),
            attempt("b", 1, Outcome.TRIGGER, dollars=1, seconds=30, kernel_runs=1),
            attempt("b", 2, Outcome.TRIGGER, dollars=0.5, seconds=40, kernel_runs=1),
        ],
        ["a", "b"],
        2,
    )
    assert (figures.dollars, figures.dollars_per_bug, figures.dollars_per_resolved) == (4, 2, 4)
    assert (figures.seconds_per_bug, figures.kernel_runs) == (50, 1)


def test_unique_and_union_solves() -> None:
    names = ["both", "one", "other", "none"]
    solved = {ONE: {"both", "one"}, OTHER: {"both", "other"}}
    results = by_setup({setup: [bug in by for bug in names] for setup, by in solved.items()}, names)
    solved = solves(results, [ONE, OTHER], 1)
    assert solved.union == ["both", "one", "other"]
    assert solved.unique == {str(ONE): ["one"], str(OTHER): ["other"]}
    assert solved.unsolved == ["none"]
    assert solved.by_bug == {"both": 2, "one": 1, "other": 1, "none": 0}


def test_two_setups_are_compared_bug_by_bug() -> None:
    names = bugs(20)
    # One solves 12 bugs that the other does not, and the other 2: McNemar's exact p is 0.0129.
    ends = {ONE: [True] * 12 + [False] * 2 + [True] * 6, OTHER: [False] * 12 + [True] * 8}
    results = by_setup(ends, names)
    comparison = compared(results, Figure.CRR)
    assert comparison.p_value == pytest.approx(212 / 2**14)
    assert comparison.difference.value == pytest.approx(0.5)
    assert 0 < comparison.difference.low < 0.5 < comparison.difference.high
    assert paired(results, ONE, OTHER, Figure.EPR, 1) is None


def test_equal_setups_differ_by_chance_alone() -> None:
    names = bugs(10)
    overlaps = [Overlap(common=number % 3, all=3) for number in range(10)]
    turned = overlaps[5:] + overlaps[:5]
    results = Results(
        [
            attempt(bug, setup=setup, files=files)
            for setup, all_ in ((ONE, overlaps), (OTHER, turned))
            for bug, files in zip(names, all_, strict=True)
        ],
        names,
    )
    comparison = compared(results, Figure.FILE_IOU)
    assert comparison.p_value > 0.5
    assert comparison.difference.low < 0 < comparison.difference.high


def test_bugs_before_and_after_a_cutoff_are_compared() -> None:
    before, after = bugs(40), [f"new{number}" for number in range(30)]
    ends = [attempt(bug) for bug in before] + [
        attempt(bug, outcome=Outcome.TRIGGER) for bug in after
    ]
    comparison = across(Results(ends, before), Results(ends, after), ONE, Figure.CRR, 1)
    assert comparison is not None
    assert (comparison.first, comparison.second, comparison.ratio) == (1, 0, None)
    assert comparison.difference.low > 0.8


def test_a_run_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        Results([attempt("a"), attempt("a")], ["a"])


@pytest.mark.thorough
@given(
    st.lists(
        st.lists(st.sampled_from(list(Outcome)), min_size=1, max_size=4), min_size=1, max_size=8
    )
)
def test_more_runs_never_solve_less_and_the_best_is_never_below_the_mean(
    ends: list[list[Outcome]],
) -> None:
    names = bugs(len(ends))
    attempts = [
        attempt(bug, run, end)
        for bug, all_ in zip(names, ends, strict=True)
        for run, end in enumerate(all_, 1)
    ]
    before = 0.0
    for k in range(1, min(map(len, ends)) + 1):
        figures = figures_of(attempts, names, k)
        best = figures.passed[Figure.CRR]
        assert sum(figures.outcomes.values()) == k * len(names)
        unknown = [end[:k] for end in ends if Outcome.UNKNOWN in end[:k]]
        assert (figures.resolved is None) == any(Outcome.PASS not in end for end in unknown)
        if unknown:
            assert best is None
            break
        assert best is not None
        assert before <= best.value
        assert value(figures.mean[Figure.CRR]) <= best.value
        assert best.low <= best.value <= best.high
        assert figures.resolved == round(best.value * len(names))
        before = best.value


def test_p_values_are_corrected_for_their_number() -> None:
    # The worked example of Holm's procedure with four tests: 0.005, 0.01, 0.03, 0.04.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
