"""`kgym bench export`."""

from pathlib import Path
from typing import Literal, get_args

import click
from pydantic import Field

from kgym.bench import bug_bundles, dataset, dataset_files, harbor
from kgym.bench.dataset import About
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import Exit, json_option, leave, people, printed_json, results
from kgym_cli.output.answer import Answer

Form = Literal["dataset", "kbenchsyz", "live-kbench", "live-kbench-parquet", "bundles", "harbor"]


class ExportAnswer(Answer):
    """An export, and its bugs as a dataset."""

    folder: Path
    form: Form
    dataset: About
    left_out: dict[str, str] = Field(description="bugs that have no such form, with reasons")


@click.command()
@dataset_argument
@click.argument("target", metavar="NEW", type=FOLDER)
@click.option(
    "--form",
    type=click.Choice(get_args(Form)),
    default="dataset",
    help="A dataset; a JSON file per bug; Live-kBench's two tables, as JSON lines or Parquet; a"
    " bundle, or a Harbor task, per bug, on the parent of its fix.",
)
@click.option("--name", help="Name of the export.  [default: the dataset's, plus `-chosen`]")
@choice_options
@json_option(ExportAnswer)
def export(
    folder: Path, target: Path, form: Form, name: str | None, chosen: ChosenBugs, as_json: bool
) -> None:
    """Write the selected bugs of the dataset in DIR to a folder NEW; all if none are selected.

    A bug of which no kernel or no program is known has no bundle and no Harbor task: such bugs are
    named with the reason, and the exit status is 1.
    """
    left_out: dict[str, str] = {}
    bugs = chosen.of(dataset.load(folder), name)
    if form == "dataset":
        bugs.save(target)
    elif form == "kbenchsyz":
        dataset_files.write_kbenchsyz(bugs, target)
    elif form == "harbor":
        left_out = harbor.write(bugs, target)
    elif form == "bundles":
        left_out = bug_bundles.write_bundles(bugs, target)
    else:
        dataset_files.write_live_kbench(
            bugs, target, "parquet" if form == "live-kbench-parquet" else "jsonl"
        )
    for bug, why in left_out.items():
        people.print(f"left out: {bug}: {why}", style="yellow")
    about = bugs.about
    if not printed_json(
        ExportAnswer(folder=target, form=form, dataset=about, left_out=left_out), as_json
    ):
        count = about.bugs - len(left_out)
        results.print(f"{about.name}: {count} bugs in {target}")
    leave(Exit.NEGATIVE if left_out else Exit.OK)
