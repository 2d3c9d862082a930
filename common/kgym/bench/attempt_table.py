"""Attempts as columns: figures of 100,000 attempts take milliseconds. Pure.

Each page computes its figures anew, even for a benchmark of 267,000 attempts. So they are computed
on arrays, without a loop over attempts.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgym.bench.attempt_record import AttemptRecord, BugId, Outcome, Overlap, Setup

OUTCOMES = tuple(Outcome)
Numbers = NDArray[np.int64]
Values = NDArray[np.float64]

# Columns of an AttemptTable. NaN: not known. `outcome` is an index into OUTCOMES.
VALUES = (
    *("crr", "epr", "epr_by_execution", "behavioural_equivalence", "clean"),
    *("file_iou", "function_iou"),
    *("dollars", "seconds", "kernel_runs", "outcome", "racy"),
)


@dataclass(frozen=True)
class AttemptTable:
    """Attempts ordered by setup, bug and run, without repeats; all columns have equal lengths.

    `bug` and `setup` are indexes into `bugs` and `setups`; `source` is the index of each attempt in
    the order in which they were added.
    """

    bugs: tuple[BugId, ...]
    setups: tuple[Setup, ...]
    bug: Numbers
    setup: Numbers
    run: Numbers
    source: Numbers
    values: Mapping[str, Values]

    @classmethod
    def of(cls, attempts: Iterable[AttemptRecord]) -> "AttemptTable":
        """Return a table; raise ValueError if a run of a setup on a bug occurs twice."""
        given = list(attempts)
        builder = TableBuilder(sorted({attempt.setup for attempt in given}, key=str))
        for attempt in given:
            builder.add(attempt)
        return builder.build()

    def __len__(self) -> int:
        return len(self.run)

    @cached_property
    def _keys(self) -> Numbers:
        return self.setup * max(1, len(self.bugs)) + self.bug

    @cached_property
    def _places(self) -> Mapping[BugId, int]:
        return {bug: place for place, bug in enumerate(self.bugs)}

    @cached_property
    def resolved_before(self) -> Values:
        """Number of resolved attempts before each row; one item more than there are rows."""
        return np.concatenate([[0.0], np.cumsum(self.values["crr"] == 1)])

    @cached_property
    def unknown_before(self) -> Values:
        """Number of attempts with an unknown outcome before each row, in the same form."""
        return np.concatenate([[0.0], np.cumsum(np.isnan(self.values["crr"]))])

    def places(self, bugs: Sequence[BugId]) -> Numbers:
        """Return the indexes of these bugs in `bugs`; -1 for a bug without attempts."""
        return np.array([self._places.get(bug, -1) for bug in bugs], dtype=np.int64)

    def counts(self, setup: int, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return, for each bug, the first row of a setup's attempts and their number."""
        wanted = setup * max(1, len(self.bugs)) + places
        first = np.searchsorted(self._keys, wanted, side="left")
        number = np.searchsorted(self._keys, wanted, side="right") - first
        return first, np.where(places < 0, 0, number)


class TableBuilder:
    """Builder of a table from a stream of attempts. It does not keep them: patches take memory."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self._setups = {setup: number for number, setup in enumerate(setups)}
        self._bugs: dict[BugId, int] = {}
        # `array` takes 8 bytes a value, a list of integers about 36.
        self._bug, self._setup, self._run = array("q"), array("q"), array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._run)

    def add(self, attempt: AttemptRecord) -> None:
        """Add an attempt; raise ValueError if its setup is not one of the table's."""
        if attempt.setup not in self._setups:
            raise ValueError(f"unknown setup {str(attempt.setup)[:200]}")
        self._setup.append(self._setups[attempt.setup])
        self._bug.append(self._bugs.setdefault(attempt.bug, len(self._bugs)))
        self._run.append(attempt.run)
        self._values.extend(_row(attempt))

    def build(self) -> AttemptTable:
        """Return the table; raise ValueError if a run of a setup on a bug occurs twice."""
        setup, bug, run = (np.array(column) for column in (self._setup, self._bug, self._run))
        values = np.array(self._values).reshape(len(run), len(VALUES))
        # In this order, the runs of a setup on a bug are adjacent: `counts` finds them by binary
        # search.
        order = np.lexsort((run, bug, setup))
        setup, bug, run, values = setup[order], bug[order], run[order], values[order]
        bugs, setups = tuple(self._bugs), tuple(self._setups)
        repeated = (np.diff(setup) == 0) & (np.diff(bug) == 0) & (np.diff(run) == 0)
        if repeated.any():
            row = int(repeated.argmax())
            raise ValueError(
                f"{str(setups[setup[row]])[:200]} has run {run[row]} on {bugs[bug[row]]} twice"
            )
        columns = {name: values[:, place].copy() for place, name in enumerate(VALUES)}
        return AttemptTable(bugs, setups, bug, setup, run, order, columns)


def _row(attempt: AttemptRecord) -> list[float]:
    """Return the values of an attempt, in the order of VALUES."""
    values = (
        attempt.resolved,
        attempt.equivalent,
        attempt.equivalent_by_execution,
        attempt.behavioural_equivalence,
        attempt.clean if attempt.resolved else attempt.resolved,
        _overlap(attempt, attempt.files),
        _overlap(attempt, attempt.functions),
        None if attempt.dollars is None else attempt.dollars + (attempt.kernel_dollars or 0.0),
        attempt.seconds,
        attempt.kernel_runs,
        _OUTCOME_INDEXES[attempt.outcome],
        attempt.racy,
    )
    return [np.nan if value is None else float(value) for value in values]


_OUTCOME_INDEXES = {outcome: index for index, outcome in enumerate(OUTCOMES)}


def _overlap(attempt: AttemptRecord, overlap: Overlap | None) -> float | None:
    """Return the ratio of an overlap; 0 for an attempt without a patch: it changes nothing."""
    if overlap is None:
        return 0.0 if attempt.outcome is Outcome.BAD and not attempt.diff else None
    return overlap.ratio
