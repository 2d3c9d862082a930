"""Contents of a benchmark's pages, computed from columns of attempts. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from kgym.bench import query as queries
from kgym.bench.attempt_record import Setup
from kgym.bench.attempt_table import OUTCOMES
from kgym.bench.attributes import ATTRIBUTES, UNKNOWN, Attribute
from kgym.bench.bug_record import BugFacts
from kgym.bench.comparison import PairedDifference, across, holm, paired, sign_test
from kgym.bench.figures import Figure, Measured, Results, SetupFigures
from kgym.bench.intervals import Values
from kgym.bench.published_benchmark import Benchmark
from kgym.bench.query import Query
from kgym.errors import UserError
from kgym_monitor.benchmarks.board_query import BoardQuery
from kgym_monitor.pages import wording
from kgym_monitor.pages.wording import visible

# Setups whose Pass@k is drawn: one per colour of the palette.
CURVES = 7
# Live-kBench's figures; with Pass@k and Mean@k of each, there are eight.
SHOWN = (Figure.CRR, Figure.EPR, Figure.FILE_IOU, Figure.FUNCTION_IOU)
# Ours, of which Mean@k is compared as well.
OURS = (Figure.CLEAN, Figure.EPR_BY_EXECUTION, Figure.BEHAVIOURAL_EQUIVALENCE)
# Most bugs, or attempts, on a page.
ROWS = 200
TOUGHEST = 20
# Most pages in the cache.
KEPT = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """A setup on the leaderboard; `figures` is None if a bug has fewer than k runs."""

    number: int
    setup: Setup
    runs: int
    figures: SetupFigures | None
    unique: int = 0
    colour: int = 0
    """Palette index from 1; 0: no curve."""
    rank: int | None = None
    """From 1; setups whose intervals overlap with the first of a rank share it."""
    is_frontier: bool = False
    """Whether it is Pareto-optimal: no other resolves as much for less, or more for the same."""

    @property
    def rate(self) -> Measured | None:
        """Mean@k of the crash resolution rate, by which setups are ordered."""
        return self.figures.mean[Figure.CRR] if self.figures is not None else None

    @property
    def cost(self) -> float:
        """Dollars per bug; infinite if not known."""
        cost = self.figures.dollars_per_bug if self.figures is not None else None
        return inf if cost is None else cost


@dataclass(frozen=True, slots=True)
class Group:
    """Bugs with the same value of an attribute."""

    value: str
    bugs: int
    unsolved: int
    crr: float | None
    """Mean over setups and runs."""
    epr: float | None
    address: Mapping[str, str | None]
    """Filter for these bugs; empty if no filter selects them."""
    rates: Mapping[int, float | None]
    """Mean CRR of each setup, by its number."""
    best: int | None = None
    """The number of the setup that resolves most of them, if no other resolves as many."""
    p_value: float | None = None
    """Of the sign test of the best setup against the next, corrected for the number of groups."""


@dataclass(frozen=True, slots=True)
class BugLine:
    """A bug, and the number of setups that resolved it."""

    facts: BugFacts
    tried: int
    solved: int
    crr: float | None
    """Share of attempts that resolved it."""


class ReadyPages:
    """Cache of page contents, by benchmark version and address."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = Lock()

    def get(self, benchmark: Benchmark, query: BoardQuery, make: Callable[..., T], *of: Any) -> T:
        """Return the result of `make`, cached."""
        key = (benchmark.name, benchmark.version, query, make, of)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                kept: T = self._kept[key]
                return kept
        # Outside the lock: two readers may compute the same page, but none waits for another's
        # page.
        made = make(benchmark, query, *of)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


class Choice:
    """Selected bugs and setups of an address, and their attempts."""

    def __init__(self, benchmark: Benchmark, query: BoardQuery) -> None:
        takes = query.bugs()
        self.bugs = {bug: facts for bug, facts in benchmark.facts.items() if takes(facts)}
        self.results = Results(benchmark.table, list(self.bugs))
        self.setups = query.setups(benchmark.setups)
        self.runs = {number: self.results.runs(setup) for number, setup in self.setups}
        self.most = max(self.runs.values(), default=0)
        tried = [runs for runs in self.runs.values() if runs]
        # By default the largest k that all setups have reached: their figures are comparable.
        self.k = query.runs(self.most) or min(tried, default=1)

    def by_number(self, number_text: str | None) -> tuple[int, Setup] | None:
        """Return the setup with this number; raise UserError `bad_filter`."""
        if number_text is None:
            return None
        for number, setup in self.setups:
            if str(number) == number_text:
                return number, setup
        raise UserError("bad_filter", f"no setup {number_text[:20]}, or the filter excludes it")

    def by_bug(self, name: str) -> Values:
        """Return a value's mean over the first k runs, by setup (rows) and bug (columns).

        Setups with fewer runs are left out.
        """
        rows = [
            self.results.column(setup, name, self.k).mean(axis=1)
            for number, setup in self.setups
            if self.runs[number] >= self.k
        ]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.bugs))


def board(benchmark: Benchmark, query: BoardQuery) -> dict[str, Any]:
    """Return the contents of the leaderboard."""
    choice, attribute = Choice(benchmark, query), ATTRIBUTES[query.attribute()]
    setups = [setup for _, setup in choice.setups]
    figures = dict(zip(setups, choice.results.all_figures(setups, choice.k), strict=True))
    solved = {
        setup: choice.results.solved(setup, choice.k)
        for setup, measured in figures.items()
        if measured
    }
    lines = _lines(choice, figures, _unique(solved))
    crr, epr = choice.by_bug("crr"), choice.by_bug("epr")
    union = frozenset[str]().union(*solved.values())
    undecided = frozenset[str]().union(
        *(choice.results.undecided(setup, choice.k) for setup in solved)
    )
    return {
        "benchmark": benchmark,
        "k": choice.k,
        "most": choice.most,
        "chosen": len(choice.bugs),
        "lines": lines,
        "waiting": [line for line in lines if line.figures is None],
        "shown": SHOWN,
        "curves": _curves(choice, lines),
        "groups": _groups(choice, attribute, crr, epr),
        "attribute": attribute,
        "union": len(union),
        "unsolved": len(choice.bugs) - len(union | undecided) if solved else 0,
        "toughest": _bug_lines(choice, choice.bugs, solved, crr)[:TOUGHEST] if solved else [],
        "cutoff": _cutoff(benchmark, query, choice),
        "more": query.more == "yes",
        **setup_options(benchmark),
    }


def setup_options(benchmark: Benchmark) -> dict[str, list[str]]:
    """Return agents and models for the filter form."""
    setups = [setup for _, setup in benchmark.setups]
    return {
        "agents": sorted({visible(setup.agent) for setup in setups}),
        "models": sorted({visible(setup.model) for setup in setups if setup.model}),
    }


def bugs(benchmark: Benchmark, query: BoardQuery) -> dict[str, Any]:
    """Return the contents of the list of bugs, hardest first."""
    choice = Choice(benchmark, query)
    tried = {setup: choice.results.solved(setup, choice.k) for _, setup in choice.setups}
    # A setup without runs on these bugs has not failed on them.
    ready = {setup: resolved for setup, resolved in tried.items() if choice.results.runs(setup)}
    lines = _bug_lines(choice, choice.bugs, ready, choice.by_bug("crr"))
    start = _place(query)
    following = str(start + ROWS) if start + ROWS < len(lines) else None
    return {
        "benchmark": benchmark,
        "k": choice.k,
        "most": choice.most,
        "chosen": len(lines),
        "rows": lines[start : start + ROWS],
        "following": following,
        **setup_options(benchmark),
    }


def compared(benchmark: Benchmark, query: BoardQuery) -> dict[str, Any]:
    """Return the comparison of two setups; without rows if the address names fewer."""
    choice = Choice(benchmark, query)
    first, second = choice.by_number(query.first), choice.by_number(query.second)
    shown: dict[str, Any] = {"benchmark": benchmark, "k": choice.k, "setups": choice.setups}
    shown |= {"first": first, "second": second, "chosen": len(choice.bugs), "rows": [], "sides": ()}
    if first is None or second is None:
        return shown
    k = min(choice.k, choice.runs[first[0]], choice.runs[second[0]])
    if k < 1:
        return shown
    differences: list[tuple[str, PairedDifference]] = []
    for figure in (*SHOWN, *OURS):
        for best in (True, False):
            of = paired(choice.results, first[1], second[1], figure, k, best=best)
            if of is not None:
                differences.append((f"Pass@{k}" if best else f"Mean@{k}", of))
    by_first, by_second = (choice.results.solved(setup, k) for _, setup in (first, second))
    sides = tuple(
        [choice.bugs[bug] for bug in sorted(side)]
        for side in (by_first - by_second, by_second - by_first, by_first & by_second)
    )
    adjusted = holm([of.p_value for _, of in differences])
    rows = [(*row, p) for row, p in zip(differences, adjusted, strict=True)]
    return shown | {"k": k, "rows": rows, "sides": sides}


def queried(benchmark: Benchmark, query: BoardQuery) -> dict[str, Any]:
    """Return the answer to a research query on the chosen bugs and setups."""
    choice = Choice(benchmark, query)
    parts = {"by": (query.levels or "").split(), "metrics": (query.metrics or "crr@1").split()}
    try:
        asked = Query.model_validate(parts)
    except ValidationError as error:
        raise UserError("bad_filter", wording.fault(error)) from error
    setups = [number for number, _ in choice.setups]
    shown = {"benchmark": benchmark, "k": choice.k, "most": choice.most}
    shown |= {"answer": queries.answer(benchmark.table, choice.bugs, asked, setups)}
    return shown | setup_options(benchmark)


def bug(benchmark: Benchmark, query: BoardQuery, name: str) -> dict[str, Any]:
    """Return the attempts on a bug by setup, as outcomes in order of runs."""
    rows = []
    place = benchmark.table.places([name])
    for number, setup in benchmark.setups:
        (first,), (count,) = benchmark.table.counts(number, place)
        taken = slice(int(first), int(first + min(count, ROWS)))
        values = {key: column[taken] for key, column in benchmark.table.values.items()}
        runs = [
            (int(run), OUTCOMES[int(outcome)], None if np.isnan(epr) else bool(epr))
            for run, outcome, epr in zip(
                benchmark.table.run[taken], values["outcome"], values["epr"], strict=True
            )
        ]
        if runs:
            known = values["dollars"]
            dollars = None if np.isnan(known).any() else float(known.sum())
            rows.append((number, setup, runs, dollars))
    return {"benchmark": benchmark, "facts": benchmark.facts.get(name), "rows": rows}


# --- parts ----------------------------------------------------------------------------------


def _lines(
    choice: Choice, figures: Mapping[Setup, SetupFigures | None], unique: Mapping[Setup, int]
) -> list[Line]:
    """Return the setups, best first: by Mean@k of the crash resolution rate, then by cost."""
    lines = [
        Line(number, setup, choice.runs[number], figures[setup], unique.get(setup, 0))
        for number, setup in choice.setups
    ]
    lines.sort(key=lambda line: (-line.rate.value if line.rate else 1.0, line.cost, line.number))
    ranks, frontier = _ranks(lines), _frontier(lines)
    return [
        replace(
            line,
            colour=place if place <= CURVES and line.figures is not None else 0,
            rank=ranks.get(line.number),
            is_frontier=line.number in frontier,
        )
        for place, line in enumerate(lines, start=1)
    ]


def _ranks(lines: Sequence[Line]) -> dict[int, int]:
    """Return the ranks of setups, given best first, by number."""
    ranks: dict[int, int] = {}
    first: Measured | None = None
    rank = 0
    for place, line in enumerate(lines, start=1):
        if line.rate is None:
            break
        if first is None or line.rate.high < first.low:
            first, rank = line.rate, place
        ranks[line.number] = rank
    return ranks


def _frontier(lines: Sequence[Line]) -> set[int]:
    """Return the numbers of the setups that resolve most for what they cost."""
    frontier: set[int] = set()
    cheapest = inf
    for line in lines:  # best first: a worse one is worth its price only if it is cheaper
        if line.rate is not None and line.cost < cheapest:
            frontier.add(line.number)
            cheapest = line.cost
    return frontier


def _unique(solved: Mapping[Setup, frozenset[str]]) -> dict[Setup, int]:
    count = Counter(bug for resolved in solved.values() for bug in resolved)
    return {setup: sum(count[bug] == 1 for bug in resolved) for setup, resolved in solved.items()}


def _curves(choice: Choice, lines: Sequence[Line]) -> dict[str, list[tuple[Line, list[Measured]]]]:
    """Return Pass@k for each k by figure, for the drawn setups."""
    drawn, figures = [line for line in lines if line.colour], (Figure.CRR, Figure.EPR)
    curves = choice.results.curves([line.setup for line in drawn], figures)
    return {
        figure: [
            (line, curves[line.setup, figure]) for line in drawn if (line.setup, figure) in curves
        ]
        for figure in figures
    }


def _groups(choice: Choice, attribute: Attribute, crr: Values, epr: Values) -> list[Group]:
    places = {bug: place for place, bug in enumerate(choice.bugs)}
    numbers = [number for number, _ in choice.setups if choice.runs[number] >= choice.k]
    groups, p_values = [], []
    for value, facts in attribute.groups(choice.bugs.values()).items():
        own = [places[fact.id] for fact in facts]
        rate, equivalent = crr[:, own], epr[:, own]
        means = [_known(row.mean()) if row.size else None for row in rate]
        order = sorted(range(len(means)), key=lambda row: means[row] or 0.0, reverse=True)
        p_value, best = 1.0, None
        if len(order) > 1:
            first, second = order[:2]
            p_value = sign_test(rate[first] - rate[second])
            if (means[first] or 0.0) > (means[second] or 0.0):
                best = numbers[first]
        p_values.append(p_value)
        groups.append(
            Group(
                value,
                len(own),
                int((rate.max(axis=0, initial=0) == 0).sum()),
                _known(rate.mean()) if rate.size else 0.0,
                _known(equivalent.mean()) if equivalent.size else None,
                _address(attribute, value),
                dict(zip(numbers, means, strict=True)),
                best,
            )
        )
    corrected = holm(p_values)
    return [replace(group, p_value=p) for group, p in zip(groups, corrected, strict=True)]


def _address(attribute: Attribute, value: str) -> dict[str, str | None]:
    """Return the filter for bugs with this value, empty if there is none."""
    if value == UNKNOWN:
        return {}
    if attribute.name in {"fixed", "reported"}:
        year, month = map(int, value.split("-"))
        after = f"{year + month // 12:04d}-{month % 12 + 1:02d}-01"
        return {f"{attribute.name}_from": f"{value}-01", f"{attribute.name}_before": after}
    if attribute.name == "cause":
        return {"has_cause": value}
    if attribute.name == "racy":
        return {"racy": value}
    if attribute.choice is None or "," in value:
        return {}
    return {attribute.choice: value}


def _bug_lines(
    choice: Choice, of: Mapping[str, BugFacts], solved: Mapping[Setup, frozenset[str]], crr: Values
) -> list[BugLine]:
    """Return the bugs, those first that the fewest setups and attempts resolved."""
    mean = crr.mean(axis=0) if len(crr) else None
    count = Counter(bug for resolved in solved.values() for bug in resolved)
    lines = [
        BugLine(facts, len(solved), count[bug], None if mean is None else _known(mean[place]))
        for place, (bug, facts) in enumerate(of.items())
    ]
    return sorted(lines, key=lambda line: (line.solved, line.crr or 0.0, line.facts.id))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _cutoff(benchmark: Benchmark, query: BoardQuery, choice: Choice) -> list[dict[str, Any]]:
    """Return each setup's figures before and after the cutoff, with their difference."""
    if query.cutoff is None:
        return []
    sides = []
    for side in ("before", "after"):
        takes = query.model_copy(update={"side": side}).bugs()
        sides.append(
            Results(
                benchmark.table, [bug for bug, facts in benchmark.facts.items() if takes(facts)]
            )
        )
    differences = []
    for number, setup in choice.setups:
        for figure in (Figure.CRR, Figure.EPR):
            difference = across(sides[0], sides[1], setup, figure, choice.k)
            if difference is not None:
                differences.append({"number": number, "setup": setup, "of": difference})
    return differences


def _place(query: BoardQuery) -> int:
    if query.cursor is None:
        return 0
    if not query.cursor.isdecimal() or len(query.cursor) > 9:
        raise UserError("bad_filter", "cursor must be a number")
    return int(query.cursor)


def share(value: float | None) -> str:
    """Return a share in percent, as in the published tables: `74.16`."""
    return "" if value is None else f"{100 * value:.2f}"


def dollars(value: float | None) -> str:
    """Return an amount in dollars."""
    return "unknown" if value is None else f"${value:,.2f}"


def took(value: float | None) -> str:
    """Return a duration."""
    return "unknown" if value is None else str(timedelta(seconds=round(value)))
