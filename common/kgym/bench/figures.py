"""The figures of a benchmark, from its attempts. Pure; each figure is defined where it is made.

Sources: Live-kBench sections 4.2 and 5.1 (CRR, EPR, IoU, Mean@k, Pass@k); its leaderboard (the
first k runs of each bug, and no figure unless every bug has k); RGym Tables 1, 4 and 5 (classes).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import numpy as np
from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import AttemptRecord, Outcome, Setup
from kgym.bench.bug_record import BugId
from kgym.bench.intervals import Bootstrap, Interval, Values


class Figure(StrEnum):
    """What an attempt is worth, from 0 to 1."""

    CRR = "crr"
    """The crash is gone: upper bound of the share of valid patches."""
    EPR = "epr"
    """The crash is gone, and the patch is equivalent to the developers': lower bound."""
    CLEAN = "clean"
    """The crash is gone, and nothing else stands in the way of the patch."""
    FILE_IOU = "file_iou"
    """Files changed by both patches, of those changed by either."""
    FUNCTION_IOU = "function_iou"
    """Functions changed by both patches, of those changed by either."""


class Measured(Strict):
    """A figure with its interval at 95 %; all are shares of 1."""

    value: float
    low: float
    high: float


class SetupFigures(Strict):
    """What a setup came to; a figure is null where an attempt lacks what it takes."""

    setup: Setup
    bugs: int
    runs: int = Field(description="k: how many attempts of each bug count")
    passed: dict[Figure, Measured | None] = Field(
        description="Pass@k: the best of the first k runs of each bug"
    )
    mean: dict[Figure, Measured | None] = Field(
        description="Mean@k: the mean of the first k runs of each bug"
    )
    outcomes: dict[Outcome, int] = Field(description="RGym's classes, of all these attempts")
    racy: int = Field(description="of those that trigger, how many did on some instances alone")
    resolved: int = Field(description="bugs that some attempt has resolved")
    dollars: float | None = Field(description="of all attempts, their kernels with them")
    dollars_per_bug: float | None
    dollars_per_resolved: float | None = Field(description="null where none is resolved")
    seconds_per_bug: float | None
    kernel_runs: float | None = Field(description="calls of `run_kernel` an attempt")


class Results:
    """The attempts of some setups on the same bugs, ready to be counted.

    Attempts on other bugs than `bugs` are passed over.
    """

    def __init__(self, attempts: Iterable[AttemptRecord], bugs: Sequence[BugId]) -> None:
        """Sort the attempts; raise ValueError where a run of a setup on a bug is there twice."""
        self.bugs = tuple(dict.fromkeys(bugs))
        wanted = set(self.bugs)
        found: dict[Setup, dict[BugId, dict[int, AttemptRecord]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for one in attempts:
            if one.bug not in wanted:
                continue
            runs = found[one.setup][one.bug]
            if one.run in runs:
                raise ValueError(f"{one.setup} has run {one.run} on {one.bug} twice")
            runs[one.run] = one
        self._attempts: Mapping[Setup, Mapping[BugId, list[AttemptRecord]]] = {
            setup: {bug: [runs[run] for run in sorted(runs)] for bug, runs in by_bug.items()}
            for setup, by_bug in found.items()
        }
        self._bootstrap = Bootstrap(len(self.bugs)) if self.bugs else None

    @property
    def setups(self) -> list[Setup]:
        """Return who has tried any of the bugs."""
        return sorted(self._attempts, key=str)

    def runs(self, setup: Setup) -> int:
        """Return how many attempts every bug has: the largest k of which there are figures."""
        tried = self._attempts.get(setup, {})
        return min((len(tried.get(bug, ())) for bug in self.bugs), default=0)

    def figures(self, setup: Setup, k: int) -> SetupFigures | None:
        """Return the figures of the first k runs; None unless every bug has as many."""
        if k < 1 or k > self.runs(setup) or self._bootstrap is None:
            return None
        tables = {figure: self.values(setup, figure, k) for figure in Figure}
        there = {figure: table for figure, table in tables.items() if table is not None}
        best = [table.max(axis=1) for table in there.values()]
        mean = [table.mean(axis=1) for table in there.values()]
        measured = self._bootstrap.means(np.column_stack([*best, *mean]))
        of = dict(zip(there, map(_measured, measured[: len(there)]), strict=True))
        of_mean = dict(zip(there, map(_measured, measured[len(there) :]), strict=True))
        attempts = self._first(setup, k)
        resolved = {one.bug for one in attempts if one.resolved}
        dollars = _sum(attempts, _dollars)
        seconds = _sum(attempts, lambda one: one.seconds)
        kernel_runs = _sum(attempts, lambda one: one.kernel_runs)
        return SetupFigures(
            setup=setup,
            bugs=len(self.bugs),
            runs=k,
            passed={figure: of.get(figure) for figure in Figure},
            mean={figure: of_mean.get(figure) for figure in Figure},
            outcomes=dict(Counter(one.outcome for one in attempts)),
            racy=sum(one.racy for one in attempts),
            resolved=len(resolved),
            dollars=dollars,
            dollars_per_bug=_share(dollars, len(self.bugs)),
            dollars_per_resolved=_share(dollars, len(resolved)),
            seconds_per_bug=_share(seconds, len(self.bugs)),
            kernel_runs=_share(kernel_runs, len(attempts)),
        )

    def values(self, setup: Setup, figure: Figure, k: int) -> Values | None:
        """Return the figure of each bug (rows) and run (columns); None if one is not known."""
        worth = _WORTH[figure]
        rows = [[worth(one) for one in runs[:k]] for runs in self._by_bug(setup)]
        table = np.array(rows, dtype=float)  # None becomes NaN
        return None if np.isnan(table).any() else table

    def solved(self, setup: Setup, k: int) -> frozenset[BugId]:
        """Return the bugs that one of the first k runs has resolved."""
        return frozenset(one.bug for one in self._first(setup, k) if one.resolved)

    def _first(self, setup: Setup, k: int) -> list[AttemptRecord]:
        return [one for runs in self._by_bug(setup) for one in runs[:k]]

    def _by_bug(self, setup: Setup) -> list[list[AttemptRecord]]:
        tried = self._attempts.get(setup, {})
        return [tried.get(bug, []) for bug in self.bugs]


class Solves(Strict):
    """Which bugs several setups solve between them."""

    union: list[BugId] = Field(description="solved by at least one")
    unique: dict[str, list[BugId]] = Field(description="by setup: solved by no other one")
    unsolved: list[BugId] = Field(description="solved by none: the toughest")
    by_bug: dict[BugId, int] = Field(description="by how many setups each is solved")


def solves(results: Results, setups: Sequence[Setup], k: int) -> Solves:
    """Return the unique and the union solves of the first k runs (RGym section 5.4)."""
    solved = {setup: results.solved(setup, k) for setup in setups}
    count = Counter(bug for bugs in solved.values() for bug in bugs)
    return Solves(
        union=sorted(count),
        unique={
            str(setup): sorted(bug for bug in bugs if count[bug] == 1)
            for setup, bugs in solved.items()
        },
        unsolved=sorted(set(results.bugs) - set(count)),
        by_bug={bug: count[bug] for bug in results.bugs},
    )


# --- what an attempt is worth ---------------------------------------------------------------


def _equivalent(one: AttemptRecord) -> float | None:
    return None if one.equivalent is None else float(one.equivalent)


def _clean(one: AttemptRecord) -> float | None:
    if not one.resolved:
        return 0.0
    return None if one.clean is None else float(one.clean)


def _files(one: AttemptRecord) -> float | None:
    return _overlap(one, one.files.ratio if one.files else None)


def _functions(one: AttemptRecord) -> float | None:
    return _overlap(one, one.functions.ratio if one.functions else None)


def _overlap(one: AttemptRecord, ratio: float | None) -> float | None:
    """Return the ratio; that of an attempt without a patch, which changes nothing, is 0."""
    return 0.0 if ratio is None and not one.diff and one.outcome is Outcome.BAD else ratio


_WORTH: Mapping[Figure, Callable[[AttemptRecord], float | None]] = {
    Figure.CRR: lambda one: float(one.resolved),
    Figure.EPR: _equivalent,
    Figure.CLEAN: _clean,
    Figure.FILE_IOU: _files,
    Figure.FUNCTION_IOU: _functions,
}


def _dollars(one: AttemptRecord) -> float | None:
    return None if one.dollars is None else one.dollars + (one.kernel_dollars or 0.0)


def _sum(
    attempts: Iterable[AttemptRecord], of: Callable[[AttemptRecord], float | None]
) -> float | None:
    """Return the sum; None where one is not known: what is not known did not cost nothing."""
    values = [of(one) for one in attempts]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _share(total: float | None, parts: int) -> float | None:
    return total / parts if total is not None and parts else None


def _measured(one: Interval) -> Measured:
    return Measured(value=one.value, low=one.low, high=one.high)
