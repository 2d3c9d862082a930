"""Confidence intervals by the bootstrap over bugs. Pure.

Which bugs a dataset happens to hold is what the figures depend on, so it is bugs that are drawn
again, each with all its attempts. Values are shares, from 0 to 1.

With few bugs, or where nearly all are alike, the plain bootstrap is too narrow: of ten solved bugs
it says 100 % for certain. So two bugs are added before it is drawn, one that counts 0 and one that
counts 1, as Agresti and Caffo add them to shares ("Simple and effective confidence intervals for
proportions", The American Statistician 54, 2000). `tests/benchmark/test_intervals.py` simulates
how often the intervals hold the truth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.95
SEED = 20251222

# Numbers that are held at once: a column of 100,000 bugs would else take gigabytes.
HELD = 4_000_000

# A row for each bug, a column for each figure.
Values: TypeAlias = NDArray[np.float64]
# What is drawn: its error of 1e-6 is far below that of drawing, and it takes half the time.
Shares: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the limits between which it lies at LEVEL."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Draws of `bugs` bugs; the same for all figures of a table, so that these can be compared."""

    def __init__(self, bugs: int, draws: int = DRAWS, seed: int = SEED) -> None:
        if bugs < 1:
            raise ValueError("an interval takes at least one bug")
        self._bugs, self._draws, self._seed = bugs + 2, draws, seed
        few = self._bugs * draws <= HELD
        self._held = list(self._parts()) if few else None

    def _parts(self) -> Iterator[Shares]:
        """Yield how often each bug was drawn, as a share: some draws at a time."""
        generator = np.random.default_rng(self._seed)
        equal = np.full(self._bugs, 1 / self._bugs)
        at_once = max(1, HELD // self._bugs)
        for start in range(0, self._draws, at_once):
            size = min(at_once, self._draws - start)
            drawn = generator.multinomial(self._bugs, equal, size=size) / self._bugs
            yield drawn.astype(np.float32)

    def _mean(self, values: Values) -> Shares:
        """Return the mean of each column (rows) in each draw (columns)."""
        parts = self._held if self._held is not None else self._parts()
        by_figure = values.T.astype(np.float32)
        return np.concatenate([by_figure @ part.T for part in parts], axis=1)

    def means(self, values: Values) -> list[Interval]:
        """Return the mean over bugs of each column."""
        return _intervals(values.mean(axis=0), self._drawn(values))

    def difference(self, values: Values, other: "Bootstrap", others: Values) -> list[Interval]:
        """Return the mean of each column less that of the same column on other bugs.

        `other` is the bootstrap of those bugs, with another seed.
        """
        value = values.mean(axis=0) - others.mean(axis=0)
        return _intervals(value, self._drawn(values) - other._drawn(others))

    def paired(self, values: Values, others: Values) -> list[Interval]:
        """Return the mean of the differences, bug by bug: two setups on the same bugs."""
        # The two that are added differ in opposite ways.
        differences = values - others
        ends = np.vstack([differences, np.full(differences.shape[1], -1.0)])
        ends = np.vstack([ends, np.full(differences.shape[1], 1.0)])
        return _intervals(differences.mean(axis=0), self._mean(ends))

    def _drawn(self, values: Values) -> Shares:
        ends = np.vstack([values, np.zeros(values.shape[1]), np.ones(values.shape[1])])
        return self._mean(ends)


@lru_cache(maxsize=16)
def bootstrap(bugs: int, seed: int = SEED) -> Bootstrap:
    """Return the draws of so many bugs, made once."""
    return Bootstrap(bugs, seed=seed)


def _intervals(value: Values, drawn: Shares) -> list[Interval]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=1, overwrite_input=True)
    # The added bugs pull towards the middle; the figure itself stays within.
    low, high = np.minimum(low, value), np.maximum(high, value)
    return [
        Interval(float(middle), float(least), float(most))
        for middle, least, most in zip(value, low, high, strict=True)
    ]
