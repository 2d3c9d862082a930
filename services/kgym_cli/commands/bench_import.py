"""`kgym bench import`."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar, get_args

import click
from pydantic import Field

from kgym.bench import attempt_files, bug_bundles, dataset_files, karena, rgym
from kgym.bench import dataset as datasets
from kgym.bench.dataset import About, Dataset
from kgym.errors import NotFound, UserError
from kgym.host.separate_process import within
from kgym_cli.inputs.parameters import FILE, FOLDER, PATH
from kgym_cli.output import json_option, people, print_json, results
from kgym_cli.output.answer import Answer

# Limits of reading a source; the memory is address space, of which pyarrow reserves one GiB.
_SECONDS, _MEMORY = 600.0, 3 << 30
P = ParamSpec("P")
T = TypeVar("T")
Form = Literal["kbenchsyz", "live-kbench", "karena", "bundles", "rgym"]


class ImportAnswer(Answer):
    """An imported dataset."""

    folder: Path
    dataset: About
    attempts: int | None = None
    failed: int | None = Field(None, description="attempts without a verdict, in failed.jsonl")


def _read(
    form: Form, path: Path, wanted: str | None, programs: Path | None, known: Path | None
) -> Dataset:
    """Return the bugs of a source as a dataset."""
    if form == "kbenchsyz":
        return dataset_files.read_kbenchsyz(path, programs=programs)
    if form == "live-kbench":
        return dataset_files.read_live_kbench(path, wanted)
    if form == "bundles":
        return bug_bundles.read_bundles(path)
    if form == "rgym":
        if known is None:
            message = "rgym only names bugs: give the dataset that holds them with --from"
            raise UserError("bad_choice", message)
        read = rgym.bugs if path.is_dir() else dataset_files.read_list
        return read(path, datasets.load(known))
    defined = karena.datasets(path)
    if (name := wanted or "all") not in defined:
        there = ", ".join(sorted(defined))
        raise NotFound("no_such_dataset", f"{path} has no dataset {name!r}; it has: {there}")
    return defined[name]


def _limited(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    # A file of a few kilobytes may unpack to any size, and damage the parser of Parquet.
    return asyncio.run(within(_SECONDS, _MEMORY, function, *args, **kwargs))


@click.command("import")
@click.argument("form", type=click.Choice(get_args(Form)))
@click.argument("source", type=PATH)
@click.option("--into", required=True, type=FOLDER, help="Folder of the dataset.")
@click.option("--name", help="Name of the dataset.  [default: the source's]")
@click.option("--dataset", "wanted", help="Which dataset of the source.  [default: all bugs]")
@click.option("--programs", type=FOLDER, help="Folder with the programs in C, as ID.c (kbenchsyz).")
@click.option("--from", "known", type=FOLDER, help="Dataset that holds the bugs (rgym).")
@click.option(
    "--compilers", type=FILE, help="RGym's compiler_mapping.json, for bugs that name no compiler."
)
@click.option(
    "--attempts",
    type=FILE,
    help="Also write agents' attempts to this file, one per line; failed.jsonl beside it takes"
    " those without a verdict (karena, rgym's jobs).",
)
@click.option("--judge", help="Judge whose votes are imported, if several have voted.")
@json_option(ImportAnswer)
def import_(
    form: Form,
    source: Path,
    into: Path,
    name: str | None,
    wanted: str | None,
    programs: Path | None,
    known: Path | None,
    compilers: Path | None,
    attempts: Path | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Make a dataset from SOURCE, in one of these formats.

    \b
    kbenchsyz    a folder with a JSON file for each bug
    live-kbench  a folder with the tables `bugs` and `datasets`
    karena       kArena's database, an SQLite file
    bundles      a bundle, or a folder of bundles
    rgym         a file of syzbot's bug ids, or a folder of jobs; --from holds the bugs
    """
    jobs = form == "rgym" and source.is_dir()
    if attempts is not None and form != "karena" and not jobs:
        message = f"{form} holds no attempts: use --attempts only with karena, or rgym's jobs"
        raise UserError("no_attempts", message)
    dataset = _limited(_read, form, source, wanted, programs, known)
    dataset = _limited(rgym.with_compilers, dataset, compilers) if compilers else dataset
    if name is not None:
        dataset = Dataset.of(
            name, dataset.bugs, description=dataset.description, source=dataset.source
        )
    # Read before the dataset is saved, so that a bad database leaves nothing behind.
    read = partial(rgym.results, known=dataset) if jobs else partial(karena.results, judge=judge)
    imported = None if attempts is None else _limited(read, source)
    about = dataset.save(into)
    if attempts is not None and imported is not None:
        attempt_files.write(attempts, imported.attempts)
        attempt_files.write(attempts.with_name(attempt_files.FAILED), imported.failed)
    if as_json:
        made = failed = None
        if imported is not None:
            made, failed = len(imported.attempts), len(imported.failed)
        print_json(ImportAnswer(folder=into, dataset=about, attempts=made, failed=failed))
        return
    if imported is not None:
        people.print(f"{len(imported.attempts)} attempts in {attempts}")
        for reason, count in Counter(attempt.reason for attempt in imported.failed).most_common():
            people.print(f"{count} attempts without a verdict: {reason}")
    if about.source is not None:
        people.print(f"source: {about.source}")
    results.print(f"{about.name}: {about.bugs} bugs, {about.sha256}")
