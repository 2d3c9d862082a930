"""Comparisons: two setups on the same bugs, and one setup on two sets of bugs. Pure."""

from collections.abc import Sequence
from math import comb

import numpy as np
from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import Setup
from kgym.bench.figures import Figure, Measured, Results
from kgym.bench.intervals import SEED, Interval, Values, bootstrap

FLIPS = 10_000
_AT_ONCE = 1000


class Difference(Strict):
    """The difference of a figure, `first` minus `second`, with its 95 % interval."""

    figure: Figure
    first: float
    second: float
    difference: Measured
    ratio: float | None = Field(
        description="relative difference (first / second - 1), as in Live-kBench's tables; null if"
        " the second is 0"
    )


class PairedDifference(Difference):
    """The difference of two setups on the same bugs."""

    p_value: float = Field(
        description="probability of a difference as large if both are equally good: McNemar's exact"
        " test for yes/no figures, else a permutation test with 10,000 exchanges of the two setups'"
        " values within bugs"
    )


def paired(
    results: Results, first: Setup, second: Setup, figure: Figure, k: int, *, best: bool = False
) -> PairedDifference | None:
    """Compare the mean of the first k runs of each bug, or, with `best`, the best of them.

    None if a bug has fewer runs, or if the figure of a run is unknown.
    """
    first_values, second_values = (
        _by_bug(results, setup, figure, k, best=best) for setup in (first, second)
    )
    if first_values is None or second_values is None:
        return None
    (interval,) = bootstrap(len(first_values)).paired(first_values, second_values)
    differences = (first_values - second_values)[:, 0]
    return PairedDifference(
        **_difference(figure, first_values, second_values, interval),
        p_value=sign_test(differences)
        if _is_binary(first_values, second_values)
        else _exchanged(differences),
    )


def across(
    before: Results, after: Results, setup: Setup, figure: Figure, k: int, *, best: bool = False
) -> Difference | None:
    """Compare a setup on the bugs before a model's knowledge cutoff with those after it.

    None if a bug has fewer than k runs, or if the figure of a run is unknown.
    """
    # Two independent samples: equal seeds would correlate their draws, and narrow the interval.
    first_values = _by_bug(before, setup, figure, k, best=best)
    second_values = _by_bug(after, setup, figure, k, best=best)
    if first_values is None or second_values is None:
        return None
    others = bootstrap(len(second_values), seed=SEED + 1)
    (interval,) = bootstrap(len(first_values)).difference(first_values, others, second_values)
    return Difference(**_difference(figure, first_values, second_values, interval))


def _by_bug(results: Results, setup: Setup, figure: Figure, k: int, *, best: bool) -> Values | None:
    if k < 1 or k > results.runs(setup):
        return None
    table = results.values(setup, figure, k)
    if table is None:
        return None
    by_bug: Values = table.max(axis=1) if best else table.mean(axis=1)
    return by_bug.reshape(-1, 1)


def _difference(
    figure: Figure, first_values: Values, second_values: Values, interval: Interval
) -> dict[str, object]:
    first, second = float(first_values.mean()), float(second_values.mean())
    return {
        "figure": figure,
        "first": first,
        "second": second,
        "difference": Measured(value=interval.value, low=interval.low, high=interval.high),
        "ratio": first / second - 1 if second else None,
    }


def _is_binary(*values: Values) -> bool:
    return all(np.isin(array, (0.0, 1.0)).all() for array in values)


def sign_test(differences: Values) -> float:
    """Return the p-value of the exact sign test of differences, of which zeros do not count.

    For yes/no figures it is McNemar's test, on the bugs that only one of the two solves.
    """
    more, less = int((differences > 0).sum()), int((differences < 0).sum())
    tail = sum(comb(more + less, count) for count in range(min(more, less) + 1))
    return min(1.0, float(2 * tail / 2 ** (more + less)))


def _exchanged(differences: Values) -> float:
    """Return the p-value of the permutation test, which flips signs at random, bug by bug."""
    there = differences[differences != 0]
    if not len(there):
        return 1.0
    # Bugs without a difference do not change the sum. Random signs are drawn as bits, in batches.
    generator, total, width = np.random.default_rng(SEED), there.sum(), -(-len(there) // 8)
    as_large = 0
    for _ in range(FLIPS // _AT_ONCE):
        drawn = np.frombuffer(generator.bytes(_AT_ONCE * width), np.uint8)
        changed = np.unpackbits(drawn.reshape(_AT_ONCE, width), axis=1, count=len(there))
        sums = total - 2 * (changed.astype(float) @ there)
        as_large += int((abs(sums) >= abs(total) - 1e-9).sum())
    # The observed signs are one of the permutations (Phipson and Smyth 2010).
    return (as_large + 1) / (FLIPS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number, in the given order.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Statist. 6 (1979): the
    probability of any false difference among all stays below the level at which each is tested.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
