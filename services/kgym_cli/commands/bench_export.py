"""`kgym bench export`."""

from pathlib import Path
from typing import Literal, get_args

import click

from kgym.bench import bug_bundles, dataset, dataset_files, harbor
from kgym.bench.dataset import About
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.output import json_option, people, print_json, results
from kgym_cli.output.answer import Answer

Form = Literal["dataset", "kbenchsyz", "live-kbench", "live-kbench-parquet", "bundles", "harbor"]


class ExportAnswer(Answer):
    """An export, and its bugs as a dataset."""

    folder: Path
    form: Form
    dataset: About


@click.command()
@dataset_argument
@click.argument("target", metavar="NEW", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--form",
    type=click.Choice(get_args(Form)),
    default="dataset",
    show_default=True,
    help="A dataset; a JSON file per bug; Live-kBench's two tables, as JSON lines or Parquet; a"
    " bundle, or a Harbor task, per bug, on the parent of its fix.",
)
@click.option("--name", help="Name of the export.  [default: the dataset's, plus `-chosen`]")
@choice_options
@json_option(ExportAnswer)
def export(
    folder: Path, target: Path, form: Form, name: str | None, chosen: ChosenBugs, as_json: bool
) -> None:
    """Write the selected bugs of the dataset in DIR to a folder NEW; all if none are selected."""
    bugs = chosen.of(dataset.load(folder), name)
    if form == "dataset":
        bugs.save(target)
    elif form == "kbenchsyz":
        dataset_files.write_kbenchsyz(bugs, target)
    elif form == "harbor":
        for why in harbor.write(bugs, target).values():
            people.print(f"left out: {why}", style="yellow", markup=False)
    elif form == "bundles":
        bug_bundles.write_bundles(bugs, target)
    else:
        dataset_files.write_live_kbench(
            bugs, target, "parquet" if form == "live-kbench-parquet" else "jsonl"
        )
    about = bugs.about
    if as_json:
        print_json(ExportAnswer(folder=target, form=form, dataset=about))
    else:
        results.print(f"{about.name}: {about.bugs} bugs in {target}", markup=False)
