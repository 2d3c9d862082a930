"""The leaderboard: a campaign's report as a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.markup import escape

from kgym.bench import attempt_files, dataset
from kgym.bench import report as reports
from kgym.bench.figures import Figure, Measured, SetupFigures
from kgym.bench.report import Comparison, Report
from kgym_cli.output import print_table, results

_SHOWN = (Figure.CRR, Figure.CLEAN, Figure.EPR, Figure.FILE_IOU, Figure.FUNCTION_IOU)
# Shown if a campaign compares with the developers' fix.
_EXECUTED = (Figure.EPR_BY_EXECUTION, Figure.BEHAVIOURAL_EQUIVALENCE)


def of_folder(folder: Path, runs: int | None = None, pair: tuple[int, int] | None = None) -> Report:
    """Return the report of a campaign's folder."""
    bugs = [bug.id for bug in dataset.load(folder).bugs]
    failed, path = attempt_files.read_failed(folder), folder / attempt_files.NAME
    # If every attempt has failed, there is no file of attempts.
    attempts = attempt_files.read(path) if path.exists() or not failed else ()
    return reports.report(attempts, bugs, failed=failed, runs=runs, pair=pair)


def table(report: Report) -> list[list[str]]:
    """Return the rows of a report's table, after its heads."""
    k = report.runs
    executed = any(setup.passed.get(kind) for setup in report.setups for kind in _EXECUTED)
    shown = (*_SHOWN, *_EXECUTED) if executed else _SHOWN
    heads = ["#", "setup", *(f"{kind} pass@{k}" for kind in shown), f"crr mean@{k}"]
    rows = [_cells(number, setup, shown) for number, setup in _ranked(report)]
    return [[*heads, "$/bug", "s/bug", "calls"], *rows]


def show(report: Report) -> None:
    """Print a report for people."""
    heads, *rows = table(report)
    print_table(*heads, rows=[list(map(escape, row)) for row in rows])
    for number, setup in _ranked(report):
        if setup.twice_judged:
            both = f"{setup.judged_alike} of {setup.twice_judged} resolved attempts"
            results.print(f"{number}: judge and execution say the same of {both}")
    left = (
        f"; {len(report.left_out)} left out: not attempted by all setups" if report.left_out else ""
    )
    results.print(f"{report.bugs} bugs, {report.attempts} attempts{left}")
    for failed in report.failed:
        results.print(str(failed))
    for part, count in report.disputed.items():
        results.print(f"{part} differ from its own account in {count} attempts")
    solved, tough = len(report.solves.union), len(report.solves.unsolved)
    results.print(f"resolved by at least one setup: {solved}; by none: {tough}")
    for comparison in report.comparisons:
        for line in _compared(comparison):
            results.print(line)


def _ranked(report: Report) -> list[tuple[int, SetupFigures]]:
    return sorted(enumerate(report.setups, start=1), key=_rank)


def _rank(numbered: tuple[int, SetupFigures]) -> tuple[float, int]:
    number, setup = numbered
    crr = setup.passed[Figure.CRR]
    # Numbers stay those of the report, so that --compare means the same setups as in its JSON.
    return (-(crr.value if crr else 0.0), number)


def _cells(number: int, setup: SetupFigures, shown: Sequence[Figure]) -> list[str]:
    return [
        str(number),
        str(setup.setup),
        *(measured(setup.passed[figure]) for figure in shown),
        measured(setup.mean[Figure.CRR]),
        _number(setup.dollars_per_bug, "{:.2f}"),
        _number(setup.seconds_per_bug, "{:.0f}"),
        _number(setup.kernel_runs, "{:.1f}"),
    ]


def measured(figure: Measured | None) -> str:
    """Return a figure with its interval; empty if it is unknown."""
    if figure is None:
        return ""
    return f"{figure.value:.0%} ({figure.low:.0%}-{figure.high:.0%})"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _compared(comparison: Comparison) -> Iterator[str]:
    for figure in comparison.figures:
        difference = figure.difference
        best = ", best of k" if comparison.best else ""
        yield (
            f"{figure.figure}{best}: {comparison.first} less {comparison.second}:"
            f" {difference.value:+.1%} ({difference.low:+.1%} to {difference.high:+.1%}),"
            f" p = {figure.p_value:.3f}"
        )
