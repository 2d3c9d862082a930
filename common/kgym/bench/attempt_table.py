"""Attempts as columns, so that the figures of some 100,000 take milliseconds. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgym.bench.attempt_record import Attempt, AttemptRecord, AttemptRow, Outcome, Setup
from kgym.bench.bug_record import BugId

OUTCOMES = tuple(Outcome)
Numbers = NDArray[np.int64]
Values = NDArray[np.float64]

VALUES = (
    *("crr", "epr", "clean", "file_iou", "function_iou"),
    *("dollars", "seconds", "kernel_runs", "outcome", "racy"),
)
"""What there is of each attempt. NaN: not known. `outcome` is a place in OUTCOMES."""


@dataclass(frozen=True)
class AttemptTable:
    """Attempts by setup, bug and run, each of these once; equal lengths of all columns.

    `bug` and `setup` are places in `bugs` and `setups`.
    """

    bugs: tuple[BugId, ...]
    setups: tuple[Setup, ...]
    bug: Numbers
    setup: Numbers
    run: Numbers
    values: Mapping[str, Values]

    @classmethod
    def of(cls, attempts: Iterable[AttemptRecord]) -> "AttemptTable":
        """Return a table; raise ValueError where a run of a setup on a bug is there twice."""
        found = list(attempts)
        setups = tuple(sorted({one.setup for one in found}, key=str))
        places = {one: place for place, one in enumerate(setups)}
        made = cls._read(found, [places[one.setup] for one in found], setups)
        if len(made) < len(found):
            seen: set[tuple[Setup, BugId, int]] = set()
            for one in found:
                if (key := (one.setup, one.bug, one.run)) in seen:
                    raise ValueError(f"{one.setup} has run {one.run} on {one.bug} twice")
                seen.add(key)
        return made

    @classmethod
    def of_rows(cls, rows: Sequence[AttemptRow], setups: Sequence[Setup]) -> "AttemptTable":
        """Return a table of published attempts; of one that is there twice, the last counts."""
        return cls._read(rows, [one.setup for one in rows], tuple(setups))

    @classmethod
    def _read(
        cls, found: Sequence[Attempt], setup: Sequence[int], setups: tuple[Setup, ...]
    ) -> "AttemptTable":
        bugs = tuple(dict.fromkeys(one.bug for one in found))
        places = {one: place for place, one in enumerate(bugs)}
        rows = [_worth(one) for one in found]
        values = np.array(rows, dtype=float).reshape(len(rows), len(VALUES))  # None becomes NaN
        return _ordered(
            bugs,
            setups,
            np.array([places[one.bug] for one in found], dtype=np.int64),
            np.array(setup, dtype=np.int64),
            np.array([one.run for one in found], dtype=np.int64),
            {name: values[:, place] for place, name in enumerate(VALUES)},
        )

    def __len__(self) -> int:
        return len(self.run)

    def merged(self, newer: "AttemptTable") -> "AttemptTable":
        """Return both; where both have a run of a setup on a bug, the newer one's.

        The setups of `newer` begin with those of this table.
        """
        bugs = tuple(dict.fromkeys((*self.bugs, *newer.bugs)))
        places = {one: place for place, one in enumerate(bugs)}
        moved = np.array([places[one] for one in newer.bugs], dtype=np.int64)
        return _ordered(
            bugs,
            newer.setups,
            np.concatenate([self.bug, moved[newer.bug] if len(newer) else newer.bug]),
            np.concatenate([self.setup, newer.setup]),
            np.concatenate([self.run, newer.run]),
            {name: np.concatenate([self.values[name], newer.values[name]]) for name in VALUES},
        )

    @cached_property
    def _keys(self) -> Numbers:
        return self.setup * max(1, len(self.bugs)) + self.bug

    @cached_property
    def _places(self) -> Mapping[BugId, int]:
        return {bug: place for place, bug in enumerate(self.bugs)}

    @cached_property
    def resolved_before(self) -> Values:
        """How many of the rows before each one are resolved; one item more than there are rows."""
        return np.concatenate([[0.0], np.cumsum(self.values["crr"])])

    def places(self, bugs: Sequence[BugId]) -> Numbers:
        """Return the places of these bugs; -1 for one that nobody has tried."""
        return np.array([self._places.get(bug, -1) for bug in bugs], dtype=np.int64)

    def counts(self, setup: int, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return, for each bug, in which row the attempts of a setup begin, and how many follow."""
        wanted = setup * max(1, len(self.bugs)) + places
        first = np.searchsorted(self._keys, wanted, side="left")
        number = np.searchsorted(self._keys, wanted, side="right") - first
        return first, np.where(places < 0, 0, number)


def _ordered(
    bugs: tuple[BugId, ...],
    setups: tuple[Setup, ...],
    bug: Numbers,
    setup: Numbers,
    run: Numbers,
    values: Mapping[str, Values],
) -> AttemptTable:
    """Return the rows in order; of equal ones, the last."""
    order = np.lexsort((run, bug, setup))  # equal rows stay as they were
    bug, setup, run = bug[order], setup[order], run[order]
    last = np.ones(len(run), dtype=bool)
    last[:-1] = (np.diff(setup) != 0) | (np.diff(bug) != 0) | (np.diff(run) != 0)
    kept = {name: column[order][last] for name, column in values.items()}
    return AttemptTable(bugs, setups, bug[last], setup[last], run[last], kept)


def _worth(one: Attempt) -> tuple[float | None, ...]:
    """Return what there is of an attempt, in the order of VALUES."""
    clean = one.clean if one.resolved else False
    return (
        one.resolved,
        one.equivalent,
        clean,
        _overlap(one, one.files.ratio if one.files else None),
        _overlap(one, one.functions.ratio if one.functions else None),
        None if one.dollars is None else one.dollars + (one.kernel_dollars or 0.0),
        one.seconds,
        one.kernel_runs,
        _PLACES[one.outcome],
        one.racy,
    )


_PLACES = {outcome: place for place, outcome in enumerate(OUTCOMES)}


def _overlap(one: Attempt, ratio: float | None) -> float | None:
    """Return the ratio; that of an attempt without a patch, which changes nothing, is 0."""
    if ratio is None and one.outcome is Outcome.BAD and not _has_patch(one):
        return 0.0
    return ratio


def _has_patch(one: Attempt) -> bool:
    return one.has_patch if isinstance(one, AttemptRow) else bool(getattr(one, "diff", None))
