"""`kgym bench report`."""

from pathlib import Path

import click

from kgym_cli import extras
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import json_option, printed_json


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
