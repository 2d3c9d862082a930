"""Confidence intervals by the bootstrap over bugs. Pure.

The figures depend on which bugs a dataset happens to contain. So bugs are resampled, each with all
its attempts. Values are shares, from 0 to 1.

With few bugs, or if nearly all have the same value, the plain bootstrap is too narrow: for ten
solved bugs it says exactly 100 %. So two bugs are added before drawing, one with 0 and one with 1,
as Agresti and Caffo do for proportions ("Simple and effective confidence intervals for
proportions", The American Statistician 54, 2000). `tests/benchmark/test_intervals.py` simulates how
often the intervals contain the truth.
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

# Numbers in memory at once: a column of 100,000 bugs would otherwise take gigabytes.
HELD = 4_000_000

# A row for each bug, a column for each figure.
Values: TypeAlias = NDArray[np.float64]
# Drawn shares, in single precision: its error of 1e-6 is far below the sampling error, and it takes
# half the time.
Shares: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its confidence limits at LEVEL."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Draws of `bugs` bugs, the same for all figures of a table, so that they are comparable."""

    def __init__(self, bugs: int, draws: int = DRAWS, seed: int = SEED) -> None:
        if bugs < 1:
            raise ValueError("an interval takes at least one bug")
        self._bugs, self._draws, self._seed = bugs + 2, draws, seed
        # Small draws are kept for all figures of a page; large ones are repeated from the seed.
        few = self._bugs * draws <= HELD
        self._held = list(self._parts()) if few else None

    def _parts(self) -> Iterator[Shares]:
        """Yield how often each bug was drawn, as a share, in batches of draws."""
        generator = np.random.default_rng(self._seed)
        equal = np.full(self._bugs, 1 / self._bugs)
        at_once = max(1, HELD // self._bugs)
        for start in range(0, self._draws, at_once):
            size = min(at_once, self._draws - start)
            drawn = generator.multinomial(self._bugs, equal, size=size) / self._bugs
            yield drawn.astype(np.float32)

    def _mean(self, values: Values) -> Shares:
        """Return the mean of each column of `values` (as rows) in each draw (as columns)."""
        parts = self._held if self._held is not None else self._parts()
        by_figure = values.T.astype(np.float32)
        return np.concatenate([by_figure @ part.T for part in parts], axis=1)

    def means(self, values: Values) -> list[Interval]:
        """Return the mean over bugs of each column."""
        return _intervals(values.mean(axis=0), self._drawn(values))

    def difference(self, values: Values, other: "Bootstrap", others: Values) -> list[Interval]:
        """Return the mean of each column minus that of the same column on other bugs.

        `other` is the bootstrap of those bugs, with another seed.
        """
        value = values.mean(axis=0) - others.mean(axis=0)
        return _intervals(value, self._drawn(values) - other._drawn(others))

    def paired(self, values: Values, others: Values) -> list[Interval]:
        """Return the mean of the differences by bug, for two setups on the same bugs."""
        # The two added bugs differ by -1 and by 1: the extremes of a difference of shares.
        differences = values - others
        ends = np.vstack([differences, np.full(differences.shape[1], -1.0)])
        ends = np.vstack([ends, np.full(differences.shape[1], 1.0)])
        return _intervals(differences.mean(axis=0), self._mean(ends))

    def _drawn(self, values: Values) -> Shares:
        return self._mean(np.vstack([values, np.zeros(values.shape[1]), np.ones(values.shape[1])]))


@lru_cache(maxsize=16)
def bootstrap(bugs: int, seed: int = SEED) -> Bootstrap:
    """Return the cached draws of this many bugs."""
    return Bootstrap(bugs, seed=seed)


def _intervals(value: Values, drawn: Shares) -> list[Interval]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=1, overwrite_input=True)
    # The added bugs pull the limits towards the middle; keep the figure itself within them.
    low, high = np.minimum(low, value), np.maximum(high, value)
    return [
        Interval(float(middle), float(least), float(most))
        for middle, least, most in zip(value, low, high, strict=True)
    ]
