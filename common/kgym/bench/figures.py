"""The figures of a benchmark, computed from its attempts. Pure.

Sources: Live-kBench sections 4.2 and 5.1 (CRR, EPR, IoU, Mean@k, Pass@k); its leaderboard (the
first k runs of each bug, and no figure unless every bug has k); RGym Tables 1, 4 and 5 (classes).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property

import numpy as np
from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import AttemptRecord, BugId, Count32, Outcome, Setup
from kgym.bench.attempt_table import OUTCOMES, AttemptTable, Numbers
from kgym.bench.intervals import Interval, Values, bootstrap

MOST_RUNS = 1 << 31


class Figure(StrEnum):
    """A score of attempts, from 0 to 1."""

    CRR = "crr"
    """The crash is gone: upper bound of the share of valid patches."""
    EPR = "epr"
    """The crash is gone, and the patch is equivalent to the developers': lower bound."""
    EPR_BY_EXECUTION = "epr_by_execution"
    """Clean, and nearly all variants do the same as with the developers' fix."""
    BEHAVIOURAL_EQUIVALENCE = "behavioural_equivalence"
    """Share of the variants that do the same as with the developers' fix; 0 if it crashes."""
    CLEAN = "clean"
    """The crash is gone, and there is no other obstacle."""
    FILE_IOU = "file_iou"
    """Share of files changed by both patches among those changed by either."""
    FUNCTION_IOU = "function_iou"
    """Share of functions changed by both patches among those changed by either."""


class Measured(Strict):
    """A figure with its 95 % interval; all are shares of 1."""

    value: float
    low: float
    high: float


class SetupFigures(Strict):
    """The figures of a setup; a figure is null if it is unknown for an attempt."""

    setup: Setup
    bugs: int
    runs: int = Field(description="k: number of attempts per bug that count")
    passed: dict[Figure, Measured | None] = Field(
        description="Pass@k: the best of the first k runs of each bug"
    )
    mean: dict[Figure, Measured | None] = Field(
        description="Mean@k: the mean of the first k runs of each bug"
    )
    outcomes: dict[Outcome, int] = Field(description="RGym's classes, of all these attempts")
    racy: int = Field(description="attempts that trigger the bug on some instances only")
    twice_judged: Count32 = Field(
        0, description="resolved attempts with both a judge's EPR and EPR by execution"
    )
    judged_alike: Count32 = Field(0, description="those on which both say the same")
    resolved: int | None = Field(description="bugs resolved by at least one attempt")
    dollars: float | None = Field(description="of all attempts, including their kernels")
    dollars_per_bug: float | None
    dollars_per_resolved: float | None = Field(description="null if none is resolved")
    seconds_per_bug: float | None = Field(description="of all attempts, including kernel runs")
    seconds_per_resolved: float | None
    kernel_runs: float | None = Field(description="calls of `run_kernel` per attempt")


class Results:
    """The attempts of several setups on the same bugs, from which figures are computed.

    Attempts on other bugs are ignored.
    """

    def __init__(
        self, attempts: Iterable[AttemptRecord] | AttemptTable, bugs: Sequence[BugId]
    ) -> None:
        """Index the attempts; raise ValueError if a run of a setup on a bug occurs twice."""
        self.bugs = tuple(dict.fromkeys(bugs))
        self.table = attempts if isinstance(attempts, AttemptTable) else AttemptTable.of(attempts)
        self._places = {setup: place for place, setup in enumerate(self.table.setups)}
        self._bug_places = self.table.places(self.bugs)
        self._rows: dict[Setup, tuple[Numbers, Numbers]] = {}

    @cached_property
    def setups(self) -> list[Setup]:
        """The setups with attempts on any of the bugs, sorted by name."""
        tried = (setup for setup in self.table.setups if self._rows_of(setup)[1].any())
        return sorted(tried, key=str)

    def runs(self, setup: Setup) -> int:
        """Return the number of attempts that every bug has: the largest k with figures."""
        # A bug with fewer runs would be judged by fewer tries than the others.
        return int(self._rows_of(setup)[1].min(initial=MOST_RUNS)) if self.bugs else 0

    def most_runs(self, setup: Setup) -> int:
        """Return the largest number of attempts on one bug."""
        return int(self._rows_of(setup)[1].max(initial=0))

    def figures(self, setup: Setup, k: int) -> SetupFigures | None:
        """Return the figures of the first k runs; None if a bug has fewer."""
        return self.all_figures([setup], k)[0]

    def all_figures(self, setups: Sequence[Setup], k: int) -> list[SetupFigures | None]:
        """Return the figures of several setups at once, which is faster."""
        # One bootstrap for all columns: the draws are the expensive part, and are shared.
        ready = [setup for setup in setups if 1 <= k <= self.runs(setup)]
        columns: list[Values] = []
        wanted: list[tuple[Setup, Figure]] = []
        for setup in ready:
            for figure in Figure:
                if (table := self.values(setup, figure, k)) is not None:
                    wanted.append((setup, figure))
                    columns += [table.max(axis=1), table.mean(axis=1)]
        of: dict[tuple[Setup, Figure], tuple[Measured, Measured]] = {}
        if columns:
            intervals = bootstrap(len(self.bugs)).means(np.column_stack(columns))
            measured = [_measured(interval) for interval in intervals]
            of = dict(zip(wanted, zip(measured[::2], measured[1::2], strict=True), strict=True))
        made = {setup: self._figures(setup, k, of) for setup in ready}
        return [made.get(setup) for setup in setups]

    def curves(
        self, setups: Sequence[Setup], figures: Sequence[Figure]
    ) -> dict[tuple[Setup, Figure], list[Measured]]:
        """Return Pass@k for each k from 1 to the number of runs that every bug has.

        Setups without runs, and figures that are unknown for a run, are left out.
        """
        tables: dict[tuple[Setup, Figure], Values] = {}
        for setup in setups:
            for figure in figures if self.runs(setup) else ():
                if (table := self.values(setup, figure, self.runs(setup))) is not None:
                    tables[setup, figure] = np.maximum.accumulate(table, axis=1)
        if not tables:
            return {}
        intervals = iter(bootstrap(len(self.bugs)).means(np.hstack(list(tables.values()))))
        return {
            key: [_measured(next(intervals)) for _ in range(table.shape[1])]
            for key, table in tables.items()
        }

    def values(self, setup: Setup, figure: Figure, k: int) -> Values | None:
        """Return the figure by bug (rows) and run (columns); None if it is unknown for a run."""
        # A patch without a judge's votes is not "not equivalent": unknown is not 0.
        table = self.column(setup, figure.value, k)
        return None if np.isnan(table).any() else table

    def column(self, setup: Setup, name: str, k: int) -> Values:
        """Return one of `attempt_table.VALUES` by bug and run; every bug must have k runs."""
        values: Values = self.table.values[name][self._first(setup, k)]
        return values

    def solved(self, setup: Setup, k: int) -> frozenset[BugId]:
        """Return the bugs resolved by at least one of the first k runs."""
        return self._with_any(setup, k, self.table.resolved_before)

    def undecided(self, setup: Setup, k: int) -> frozenset[BugId]:
        """Return the bugs that may be resolved: an attempt is unknown, and none resolves them."""
        return self._with_any(setup, k, self.table.unknown_before) - self.solved(setup, k)

    def _with_any(self, setup: Setup, k: int, before: Values) -> frozenset[BugId]:
        """Return the bugs for which `before` counts any of the first k attempts."""
        first, number = self._rows_of(setup)
        there = before[first + np.minimum(number, k)] > before[first]
        return frozenset(bug for bug, is_there in zip(self.bugs, there, strict=True) if is_there)

    def _figures(
        self, setup: Setup, k: int, of: Mapping[tuple[Setup, Figure], tuple[Measured, Measured]]
    ) -> SetupFigures:
        taken = self._first(setup, k)
        attempts = {name: column[taken] for name, column in self.table.values.items()}
        resolved = None if self.undecided(setup, k) else len(self.solved(setup, k))
        dollars, seconds = _sum(attempts["dollars"]), _sum(attempts["seconds"])
        by_judge, by_execution = attempts["epr"], attempts["epr_by_execution"]
        # If the crash is not gone, both are 0 by definition.
        both = (attempts["crr"] == 1) & ~np.isnan(by_judge) & ~np.isnan(by_execution)
        counts = np.bincount(attempts["outcome"].astype(np.int64).ravel(), minlength=len(OUTCOMES))
        return SetupFigures(
            setup=setup,
            bugs=len(self.bugs),
            runs=k,
            passed={
                figure: of[setup, figure][0] if (setup, figure) in of else None for figure in Figure
            },
            mean={
                figure: of[setup, figure][1] if (setup, figure) in of else None for figure in Figure
            },
            outcomes={
                outcome: int(count)
                for outcome, count in zip(OUTCOMES, counts, strict=True)
                if count
            },
            racy=int(attempts["racy"].sum()),
            twice_judged=int(both.sum()),
            judged_alike=int((both & (by_judge == by_execution)).sum()),
            resolved=resolved,
            dollars=dollars,
            dollars_per_bug=_share(dollars, len(self.bugs)),
            dollars_per_resolved=_share(dollars, resolved),
            seconds_per_bug=_share(seconds, len(self.bugs)),
            seconds_per_resolved=_share(seconds, resolved),
            kernel_runs=_share(_sum(attempts["kernel_runs"]), taken.size),
        )

    def _first(self, setup: Setup, k: int) -> Numbers:
        """Return the table's rows of the first k runs, by bug."""
        first, _ = self._rows_of(setup)
        return first[:, None] + np.arange(k)

    def _rows_of(self, setup: Setup) -> tuple[Numbers, Numbers]:
        if setup not in self._rows:
            place = self._places.get(setup)
            none = np.zeros(len(self.bugs), dtype=np.int64)
            rows = (none, none) if place is None else self.table.counts(place, self._bug_places)
            self._rows[setup] = rows
        return self._rows[setup]


class Solves(Strict):
    """The bugs solved by several setups together."""

    union: list[BugId] = Field(description="solved by at least one setup")
    unique: dict[str, list[BugId]] = Field(description="by setup: solved by no other one")
    unsolved: list[BugId] = Field(description="solved by none, for certain: the hardest")
    by_bug: dict[BugId, int] = Field(description="number of setups that solve each bug")


def solves(results: Results, setups: Sequence[Setup], k: int) -> Solves:
    """Return the unique and the union solves of the first k runs (RGym section 5.4)."""
    solved = {setup: results.solved(setup, k) for setup in setups}
    count = Counter(bug for bugs in solved.values() for bug in bugs)
    undecided = frozenset[BugId]().union(*(results.undecided(setup, k) for setup in setups))
    return Solves(
        union=sorted(count),
        unique={
            str(setup): sorted(bug for bug in bugs if count[bug] == 1)
            for setup, bugs in solved.items()
        },
        unsolved=sorted(set(results.bugs) - set(count) - undecided),
        by_bug={bug: count[bug] for bug in results.bugs},
    )


def _sum(values: Values) -> float | None:
    """Return the sum; None if a value is unknown: an unknown cost is not 0."""
    return None if np.isnan(values).any() else float(values.sum())


def _share(total: float | None, parts: int | None) -> float | None:
    return total / parts if total is not None and parts else None


def _measured(interval: Interval) -> Measured:
    return Measured(value=interval.value, low=interval.low, high=interval.high)
