"""The report of a campaign: figures of each setup, and comparisons. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import (
    AttemptRecord,
    BugId,
    Count32,
    FailedAttempt,
    FailedSetup,
    Setup,
    failed_setups,
)
from kgym.bench.comparison import PairedDifference, paired
from kgym.bench.figures import Figure, Results, SetupFigures, Solves, solves
from kgym.errors import UserError

# All pairs of this many setups are compared, unless a pair is given.
MOST_COMPARED = 6


class Comparison(Strict):
    """Two setups on the same bugs; figures that are unknown for an attempt are left out."""

    first: Setup
    second: Setup
    best: bool = Field(description="whether the best of the first k runs counts, or their mean")
    figures: list[PairedDifference]


class Report(Strict):
    """The figures of all setups, on the bugs that all of them have tried."""

    attempts: int
    bugs: int
    left_out: list[BugId] = Field(description="bugs not yet tried by every setup")
    runs: int = Field(description="k: number of runs per bug that count")
    setups: list[SetupFigures]
    solves: Solves
    comparisons: list[Comparison]
    failed: list[FailedSetup] = Field(
        [], description="attempts without a verdict, which no figure includes"
    )
    disputed: dict[str, Count32] = Field(
        {},
        description="attempts whose own account differs from ours, by setup and part: dollars or"
        " seconds (by more than a tenth), or whether they resolve the bug",
    )


def report(
    attempts: Iterable[AttemptRecord],
    bugs: Sequence[BugId],
    *,
    failed: Iterable[FailedAttempt] = (),
    runs: int | None = None,
    pair: tuple[int, int] | None = None,
) -> Report:
    """Return the report of attempts on these bugs.

    `runs` is k; by default, as many as each setup has made on each bug. `pair` holds the numbers,
    from 1, of two setups to be compared by all figures. Raises UserError `nothing_to_report`,
    `no_such_setup`.
    """
    records = [attempt for attempt in attempts if attempt.bug in set(bugs)]
    every = {record.setup for record in records}
    tried = {bug: {record.setup for record in records if record.bug == bug} for bug in bugs}
    without_verdict = failed_setups(
        failed, {(record.setup, record.bug, record.run) for record in records}
    )
    # Setups are only comparable on the same bugs.
    whole = [bug for bug in bugs if tried[bug] == every and every]
    results = Results(records, whole)
    setups = results.setups
    k = runs or min((results.runs(setup) for setup in setups), default=0)
    figures = [
        setup_figures
        for setup_figures in results.all_figures(setups, k)
        if setup_figures is not None
    ]
    if not figures:
        raise UserError(
            "nothing_to_report",
            f"no bug has {runs or 1} attempts of every setup: there are {len(records)} attempts"
            + "".join(f"; {line}" for line in without_verdict),
        )
    return Report(
        attempts=len(records),
        bugs=len(whole),
        left_out=[bug for bug in bugs if bug not in whole],
        runs=k,
        setups=figures,
        solves=solves(results, setups, k),
        comparisons=list(_comparisons(results, setups, k, pair)),
        failed=without_verdict,
        disputed=Counter(
            f"{record.setup}: {part}" for record in records for part in record.disputed
        ),
    )


def _comparisons(
    results: Results, setups: Sequence[Setup], k: int, pair: tuple[int, int] | None
) -> Iterable[Comparison]:
    if pair is None:
        for first, second in combinations(setups[:MOST_COMPARED], 2):
            yield _compared(results, first, second, k, (Figure.CRR,))
        return
    if not all(1 <= number <= len(setups) for number in pair):
        raise UserError("no_such_setup", f"setups are numbered from 1 to {len(setups)}")
    first, second = (setups[number - 1] for number in pair)
    for best in (False, True):
        yield _compared(results, first, second, k, tuple(Figure), best=best)


def _compared(
    results: Results,
    first: Setup,
    second: Setup,
    k: int,
    wanted: Sequence[Figure],
    *,
    best: bool = False,
) -> Comparison:
    differences = [paired(results, first, second, figure, k, best=best) for figure in wanted]
    figures = [difference for difference in differences if difference is not None]
    return Comparison(first=first, second=second, best=best, figures=figures)
