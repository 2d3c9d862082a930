"""Research queries: figures of attempts in nested groups. Pure."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kgym.api import csv_text
from kgym.api.steps import Strict
from kgym.bench.attempt_record import BugId, Count32, Setup, Words
from kgym.bench.attempt_table import OUTCOMES, AttemptTable, Numbers
from kgym.bench.attributes import ATTRIBUTES, UNKNOWN, order
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import BugFacts
from kgym.bench.figures import Figure, Measured
from kgym.bench.intervals import bootstrap
from kgym.errors import UserError

# Each group takes a bootstrap for each metric, over its bugs.
MOST_GROUPS, MOST_DRAWN = 2000, 500_000
SETUPS: Mapping[str, Callable[[Setup], str]] = {
    "setup": str,
    "agent": lambda setup: setup.agent,
    "settings": lambda setup: setup.settings or "none",
    "model": lambda setup: setup.model or "none",
    "feedback": lambda setup: "yes" if setup.feedback else "no",
    "oracle": lambda setup: "yes" if setup.oracle else "no",
    "budget": lambda setup: "none" if setup.dollars is None else f"${setup.dollars:g}",
}
ATTEMPTS = ("outcome", "run")
# Attributes of bugs with ranges.
MEASURES: Mapping[str, Callable[[BugFacts], float | None]] = {
    "days": lambda bug: bug.days_open,
    "lines": lambda bug: bug.lines,
    "files": lambda bug: None if bug.files is None else len(bug.files),
}
Mask: TypeAlias = NDArray[np.bool_]


class Level(Strict):
    """One level of grouping: an attribute, for some with the limits of ranges.

    Written `lines:5,20` for up to 4, 5 to 19, and 20 and more lines.
    """

    by: Annotated[str, Field(max_length=20)]
    limits: list[float] = Field([], max_length=100)

    @model_validator(mode="before")
    @classmethod
    def _written(cls, level: Any) -> Any:
        if not isinstance(level, str):
            return level
        by, _, limits = level.partition(":")
        return {"by": by, "limits": [limit for limit in limits.split(",") if limit]}

    @model_validator(mode="after")
    def _known(self) -> "Level":
        known = [*ATTRIBUTES, *SETUPS, *ATTEMPTS]
        if self.by not in known:
            raise ValueError(f"no attribute {self.by}; there are: {', '.join(known)}")
        if self.limits and self.by not in MEASURES:
            raise ValueError(f"{self.by} has no ranges; these have: {', '.join(MEASURES)}")
        if any(low >= high for low, high in pairwise(self.limits)):
            raise ValueError(f"the limits of {self.by} must ascend")
        return self

    def ranges(self) -> list[str]:
        """Return the names of the ranges, in order, and of unknown values."""
        # `:g` rounds to six digits: two large limits that are close would get the same name.
        ends = [f"{limit:.15g}" for limit in self.limits]
        between = [f"{low} to below {high}" for low, high in pairwise(ends)]
        return [f"below {ends[0]}", *between, f"{ends[-1]} and more", UNKNOWN]

    def of(self, bug: BugFacts) -> Iterable[str]:
        """Return a bug's values: of an attribute, or its range."""
        if not self.limits:
            return ATTRIBUTES[self.by].of(bug)
        value = MEASURES[self.by](bug)
        return [self.ranges()[-1 if value is None else bisect_right(self.limits, value)]]


class Metric(Strict):
    """A figure of the first k runs: `epr` by the judge's votes, `epr_by_execution` without them.

    Written `crr@3` for Mean@3, `pass:crr@3` for Pass@3.
    """

    figure: Figure
    how: Literal["mean", "pass"] = "mean"
    k: int = Field(1, ge=1, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _written(cls, metric: Any) -> Any:
        if not isinstance(metric, str):
            return metric
        how, _, figure_at_k = metric.rpartition(":")
        figure, _, k = figure_at_k.partition("@")
        return {"figure": figure, "how": how or "mean", "k": k or 1}

    def __str__(self) -> str:
        return f"{self.how}:{self.figure}@{self.k}"


class Query(Strict):
    """A question to the attempts of a benchmark; levels and metrics may be written as text."""

    by: list[Level] = Field([], max_length=4, description="outermost first")
    metrics: list[Metric] = Field([Metric(figure=Figure.CRR)], min_length=1, max_length=10)
    choice: BugChoice = BugChoice()

    @model_validator(mode="after")
    def _once(self) -> "Query":
        names = [level.by for level in self.by]
        if len(set(names)) < len(names):
            raise ValueError("group by each attribute once")
        return self


class Group(Strict):
    """Attempts with the same values of some levels; a group stands before those within it."""

    values: list[Words] = Field(description="of the first levels; empty for the whole")
    bugs: Count32
    setups: Count32
    attempts: Count32 = Field(description="of all runs")
    figures: list[Measured | None] = Field(
        description="by metric, with 95 % intervals by bootstrap over bugs; null if an attempt's"
        " value is unknown, or a setup has fewer than k runs on a bug"
    )


class QueryAnswer(Strict):
    """Answer to a query."""

    query: Query
    groups: list[Group]

    @property
    def csv(self) -> str:
        """The groups as CSV, safe for spreadsheets."""
        parts = ("", " low", " high")
        names = [f"{metric}{part}" for metric in self.query.metrics for part in parts]
        rows = [[*(level.by for level in self.query.by), "bugs", "setups", "attempts", *names]]
        for group in self.groups:
            rest = [""] * (len(self.query.by) - len(group.values))
            counts = map(str, (group.bugs, group.setups, group.attempts))
            figures = (
                (str(of.value), str(of.low), str(of.high)) if of else ("", "", "")
                for of in group.figures
            )
            rows.append([*group.values, *rest, *counts, *chain.from_iterable(figures)])
        return csv_text.text(rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bugs, all attempts of its setups on them (as rows of the table), and those that count."""

    values: tuple[str, ...]
    bugs: Numbers
    rows: Numbers
    counted: Mask


def answer(
    table: AttemptTable,
    facts: Mapping[BugId, BugFacts],
    query: Query,
    setups: Sequence[int] | None = None,
) -> QueryAnswer:
    """Return the figures of each group; `setups` are places in the table, by default all.

    Raises UserError `too_many_groups`.
    """
    chosen = [bug for bug in facts.values() if query.choice.takes(bug)]
    every = range(len(table.setups)) if setups is None else setups
    return QueryAnswer(query=query, groups=_Groups(table, chosen, query).all(every))


class _Groups:
    def __init__(self, table: AttemptTable, facts: Sequence[BugFacts], query: Query) -> None:
        self._table, self._facts, self._query = table, facts, query
        places = {bug.id: place for place, bug in enumerate(self._facts)}
        of_table = np.array([places.get(bug, -1) for bug in table.bugs], dtype=np.int64)
        self._bug = of_table[table.bug] if len(table) else table.bug
        # A setup's attempts on a bug are adjacent.
        starts = np.flatnonzero(np.diff(table.setup, prepend=-1) | np.diff(table.bug, prepend=-1))
        lengths = np.diff(starts, append=len(table))
        number = np.arange(len(table)) - np.repeat(starts, lengths)
        self._number: Numbers = number.astype(np.int64)
        # Read once: groups are many, and overlap.
        self._values = {level.by: self._of_bugs(level) for level in query.by}
        self._names = {level.by: self._of_rows(level.by) for level in query.by}

    def all(self, setups: Sequence[int]) -> list[Group]:
        """Return all groups, each before those within it."""
        rows = np.flatnonzero((self._bug >= 0) & np.isin(self._table.setup, setups))
        counted = np.ones(len(rows), dtype=np.bool_)
        whole = _Part((), np.arange(len(self._facts)), rows, counted)
        # Counted first, and not kept: each part has arrays as long as the table.
        drawn = 0
        for number, part in enumerate(self._within(whole), 1):
            drawn += len(part.bugs) * len(self._query.metrics)
            if number > MOST_GROUPS or drawn > MOST_DRAWN:
                message = f"the query has over {MOST_GROUPS} groups or {MOST_DRAWN} figures of bugs"
                raise UserError("too_many_groups", f"{message}: use ranges, or fewer levels")
        return [self._group(part) for part in self._within(whole)]

    def _within(self, part: _Part) -> Iterator[_Part]:
        yield part
        if len(part.values) < len(self._query.by):
            for smaller in self._split(part, self._query.by[len(part.values)]):
                yield from self._within(smaller)

    def _split(self, part: _Part, level: Level) -> Iterator[_Part]:
        """Yield the parts with attempts that count; the work for each is at most the table's."""
        if level.by in ATTRIBUTES:
            groups: dict[str, list[int]] = {}
            for place in part.bugs.tolist():
                for value in self._values[level.by][place]:
                    groups.setdefault(value, []).append(place)
            tried = set(self._bug[part.rows[part.counted]].tolist())
            for value in sorted(groups, key=level.ranges().index if level.limits else order):
                if tried.isdisjoint(groups[value]):
                    continue
                bugs = np.array(groups[value])
                inside = np.isin(self._bug[part.rows], bugs)
                yield _Part((*part.values, value), bugs, part.rows[inside], part.counted[inside])
            return
        known, of_table = self._names[level.by]
        names = of_table[part.rows]
        for number in np.unique(names[part.counted]).tolist():
            same, values = names == number, (*part.values, known[number])
            if level.by in SETUPS:
                yield _Part(values, part.bugs, part.rows[same], part.counted[same])
            else:
                # All rows stay: the first k runs are the setup's; the group counts some of them.
                yield _Part(values, part.bugs, part.rows, part.counted & same)

    def _of_bugs(self, level: Level) -> list[list[str]]:
        """Return the values of each bug."""
        if level.by not in ATTRIBUTES:
            return []
        return [list(filter(None, level.of(bug))) or [UNKNOWN] for bug in self._facts]

    def _of_rows(self, by: str) -> tuple[list[str], Numbers]:
        """Return the values of setups or attempts in order, and the index of each row's value."""
        table = self._table
        if by in SETUPS:
            of_setups = list(map(SETUPS[by], table.setups))
            known = sorted(set(of_setups), key=order)
            places = np.array([known.index(name) for name in of_setups], dtype=np.int64)
            return known, places[table.setup]
        if by == "run":
            return [str(run + 1) for run in range(self._number.max(initial=-1) + 1)], self._number
        return list(map(str, OUTCOMES)), table.values["outcome"].astype(np.int64)

    def _group(self, part: _Part) -> Group:
        setups = len(np.unique(self._table.setup[part.rows]))
        return Group(
            values=list(part.values),
            bugs=len(part.bugs),
            setups=setups,
            attempts=int(part.counted.sum()),
            figures=[self._measured(part, metric, setups) for metric in self._query.metrics],
        )

    def _measured(self, part: _Part, metric: Metric, setups: int) -> Measured | None:
        number = self._number[part.rows]
        if int((number == metric.k - 1).sum()) < setups * len(part.bugs):
            return None
        rows = part.rows[(number < metric.k) & part.counted]
        values = self._table.values[metric.figure.value][rows]
        if not len(rows) or np.isnan(values).any():
            return None
        pairs = self._table.setup[rows] * len(self._table.bugs) + self._table.bug[rows]
        _, starts, counts = np.unique(pairs, return_index=True, return_counts=True)
        best, total = np.maximum.reduceat(values, starts), np.add.reduceat(values, starts)
        by_pair = best if metric.how == "pass" else total / counts
        # Setups have equal weight; the interval is over bugs, as for all figures.
        bugs = self._bug[rows[starts]]
        weights = np.bincount(bugs)
        by_bug = np.bincount(bugs, by_pair)[weights > 0] / weights[weights > 0]
        (interval,) = bootstrap(len(by_bug)).means(by_bug[:, None])
        return Measured(value=interval.value, low=interval.low, high=interval.high)
