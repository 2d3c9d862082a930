"""`kgym bench report` and `kgym bench query`."""

from pathlib import Path

import click
from pydantic import ValidationError
from rich.markup import escape

from kgym.api.faults import first_fault
from kgym.bench import attempt_files, dataset
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import echo, json_option, print_table, printed_json


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--k", "runs", type=click.IntRange(1), help="Runs per bug.  [default: all]")
@click.option(
    "--compare",
    "pair",
    nargs=2,
    type=click.IntRange(1),
    metavar="N N",
    help="Compare two setups, by their numbers in the table.",
)
@click.option("--manifest", is_flag=True, help="Also write DIR/manifest.json for `bench verify`.")
@json_option("kgym.bench.report:Report")
def report(
    folder: Path, runs: int | None, pair: tuple[int, int] | None, manifest: bool, as_json: bool
) -> None:
    """Show the results of a campaign in DIR: figures of each setup, with intervals.

    Only bugs that every setup attempted count. Pass@k is the best of the first k runs of each bug,
    Mean@k their mean; intervals are at 95 %. The setup that resolved most comes first.
    """
    extras.require("bench")
    from kgym_cli.bench import leaderboard  # noqa: PLC0415 - needs the extra `bench`
    from kgym_cli.bench import manifest as manifests  # noqa: PLC0415

    if manifest:
        manifests.write(folder)
    report = leaderboard.of_folder(folder, runs, pair)
    if not printed_json(report, as_json):
        leaderboard.show(report)


@click.command()
@click.argument("folder", metavar="RESULTS", type=FOLDER)
@click.option(
    "--by", multiple=True, help="Attribute by which to group, outermost first: class, lines:5,20."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    default=["crr@1"],
    help="FIGURE@K for the mean of K runs, pass:FIGURE@K for the best.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, safe for spreadsheets.")
@choice_options
@json_option("kgym.bench.query:QueryAnswer")
def query(
    folder: Path,
    by: tuple[str, ...],
    metrics: tuple[str, ...],
    as_csv: bool,
    chosen: ChosenBugs,
    as_json: bool,
) -> None:
    """Show figures of the attempts in RESULTS in nested groups, with 95 % intervals.

    Groups are by attributes of bugs (class, subsystem, lines:5,20, …), setups (agent, model,
    feedback, …) or attempts (outcome, run). An unknown attribute is refused with a list of all.
    """
    extras.require("bench")
    from kgym.bench import query as queries  # noqa: PLC0415 - needs the extra `bench`
    from kgym.bench.attempt_table import AttemptTable  # noqa: PLC0415
    from kgym_cli.bench import leaderboard  # noqa: PLC0415

    bugs = chosen.of(dataset.load(folder)).bugs
    try:
        asked = queries.Query.model_validate({"by": by, "metrics": metrics})
        table = AttemptTable.of(attempt_files.read(folder / attempt_files.NAME))
    except ValidationError as error:
        raise UserError("bad_query", first_fault(error)) from error
    except ValueError as error:
        raise UserError("bad_attempts", str(error)) from error
    shown = queries.answer(table, {bug.id: bug.facts for bug in bugs}, asked)
    if as_csv:
        echo(shown.csv, end="")
    elif not printed_json(shown, as_json):
        heads = (" / ".join(level.by for level in asked.by) or "group", "bugs", "attempts")
        rows = [
            (
                escape(" / ".join(group.values) or "all"),
                str(group.bugs),
                str(group.attempts),
                *map(leaderboard.measured, group.figures),
            )
            for group in shown.groups
        ]
        print_table(*heads, *map(str, asked.metrics), rows=rows)
