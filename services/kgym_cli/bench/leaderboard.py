"""A campaign's report as a table: the leaderboard."""

from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape

from kgym.bench import attempt_files, dataset
from kgym.bench import report as reports
from kgym.bench.figures import Figure, Measured, SetupFigures
from kgym.bench.report import Comparison, Report
from kgym_cli.output import print_table, results

_SHOWN = (Figure.CRR, Figure.CLEAN, Figure.EPR, Figure.FILE_IOU, Figure.FUNCTION_IOU)


def of_folder(folder: Path, runs: int | None = None, pair: tuple[int, int] | None = None) -> Report:
    """Return the report of a campaign's folder."""
    bugs = [one.id for one in dataset.load(folder).bugs]
    attempts = attempt_files.read(folder / attempt_files.NAME)
    return reports.report(attempts, bugs, runs=runs, pair=pair)


def show(found: Report) -> None:
    """Print a report for people."""
    k = found.runs
    heads = ["#", "setup", *(f"{one} pass@{k}" for one in _SHOWN), f"crr mean@{k}"]
    ranked = sorted(enumerate(found.setups, start=1), key=_rank)
    print_table(*heads, "$/bug", "s/bug", "calls", rows=map(_cells, *zip(*ranked, strict=True)))
    left = f"; {len(found.left_out)} left out, not tried by all" if found.left_out else ""
    results.print(f"{found.bugs} bugs, {found.attempts} attempts{left}")
    solved, tough = len(found.solves.union), len(found.solves.unsolved)
    results.print(f"resolved by at least one: {solved}; by none: {tough}")
    for one in found.comparisons:
        for line in _compared(one):
            results.print(line, markup=False)


def _rank(numbered: tuple[int, SetupFigures]) -> tuple[float, int]:
    number, one = numbered
    crr = one.passed[Figure.CRR]
    return (-(crr.value if crr else 0.0), number)


def _cells(number: int, one: SetupFigures) -> list[str]:
    return [
        str(number),
        escape(str(one.setup)),
        *(_measured(one.passed[figure]) for figure in _SHOWN),
        _measured(one.mean[Figure.CRR]),
        _number(one.dollars_per_bug, "{:.2f}"),
        _number(one.seconds_per_bug, "{:.0f}"),
        _number(one.kernel_runs, "{:.1f}"),
    ]


def _measured(one: Measured | None) -> str:
    if one is None:
        return ""
    return f"{one.value:.0%} ({one.low:.0%}-{one.high:.0%})"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _compared(one: Comparison) -> Iterator[str]:
    for figure in one.figures:
        told = figure.difference
        yield (
            f"{figure.figure}{', best of k' if one.best else ''}: {one.first} less {one.second}:"
            f" {told.value:+.1%} ({told.low:+.1%} to {told.high:+.1%}), p = {figure.p_value:.3f}"
        )
