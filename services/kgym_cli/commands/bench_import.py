"""`kgym bench import`."""

from collections.abc import Callable
from pathlib import Path

import click

from kgym.bench import attempt_files, dataset_files, karena
from kgym.bench.dataset import About, Dataset
from kgym.errors import NotFound, UserError
from kgym_cli.answer import Answer
from kgym_cli.output import json_option, people, print_json, results

Reader = Callable[[Path, str | None], Dataset]


class ImportAnswer(Answer):
    """The dataset that was made."""

    folder: Path
    dataset: About
    attempts: int | None = None


def _kbenchsyz(source: Path, wanted: str | None) -> Dataset:
    return dataset_files.read_kbenchsyz(source)


def _karena(source: Path, wanted: str | None) -> Dataset:
    defined = karena.datasets(source)
    if (name := wanted or "all") not in defined:
        there = ", ".join(sorted(defined))
        raise NotFound("no_such_dataset", f"{source} defines no dataset {name!r}, but: {there}")
    return defined[name]


READERS: dict[str, Reader] = {
    "kbenchsyz": _kbenchsyz,
    "live-kbench": dataset_files.read_live_kbench,
    "karena": _karena,
}


@click.command("import")
@click.argument("form", type=click.Choice(tuple(READERS)))
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--into",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the dataset.",
)
@click.option("--name", help="Its name.  [default: as its source calls it]")
@click.option("--dataset", "wanted", help="Which dataset of the source.  [default: all bugs]")
@click.option(
    "--attempts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what agents came to on them to this file, an attempt a line (karena).",
)
@click.option("--judge", help="Whose votes the attempts get, where several judges have voted.")
@json_option(ImportAnswer)
def import_(
    form: str,
    source: Path,
    into: Path,
    name: str | None,
    wanted: str | None,
    attempts: Path | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Make a dataset of SOURCE, which is of one of these forms.

    \b
    kbenchsyz    a folder with a JSON file for each bug
    live-kbench  a folder with the tables `bugs` and `datasets`
    karena       kArena's database, an SQLite file
    """
    if attempts is not None and form != "karena":
        raise UserError("no_attempts", f"{form} holds no attempts: --attempts goes with karena")
    dataset = READERS[form](source, wanted)
    if name is not None:
        dataset = Dataset.of(
            name, dataset.bugs, description=dataset.description, source=dataset.source
        )
    found = None if attempts is None else karena.results(source, judge).attempts
    about = dataset.save(into)
    if attempts is not None and found is not None:
        attempt_files.write(attempts, found)
    if as_json:
        made = None if found is None else len(found)
        print_json(ImportAnswer(folder=into, dataset=about, attempts=made))
        return
    if found is not None:
        people.print(f"{len(found)} attempts in {attempts}", markup=False)
    results.print(f"{about.name}: {about.bugs} bugs, {about.sha256}", markup=False)
