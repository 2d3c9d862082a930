"""`kgym bench publish`."""

import asyncio
from itertools import chain
from pathlib import Path

import click

from kgym.bench import attempt_files, dataset, publication
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.inputs.parameters import FILE
from kgym_cli.output import json_option, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.composition import open_benchmarks
from kgym_cli.settings import options_of


class PublishAnswer(Answer):
    """A published benchmark."""

    benchmark: str
    bugs: int
    setups: int
    attempts: int
    store: str
    """Folder or bucket to which it was published."""


@click.command()
@options_of("bench publish")
@dataset_argument
@click.option(
    "--attempts",
    multiple=True,
    type=FILE,
    help="File of attempts, one per line; may be repeated.  [default: attempts.jsonl in DIR]",
)
@click.option("--name", help="Name of the benchmark.  [default: the dataset's]")
@json_option(PublishAnswer)
def publish(folder: Path, attempts: tuple[Path, ...], name: str | None, as_json: bool) -> None:
    """Publish the dataset in DIR and attempts on its bugs for the monitor.

    This needs write access to --benchmarks, but no scheduler. Publishing again replaces the
    attempts atomically. The bugs of a benchmark never change: give another dataset another name.
    """
    whole = dataset.load(folder)
    # A dataset may be published before anything was attempted on it.
    own = folder / attempt_files.NAME
    files = attempts or ((own,) if own.exists() else ())
    benchmark = publication.checked_name(name or whole.name)
    url, store = open_benchmarks()
    index = asyncio.run(
        publication.publish(
            store,
            benchmark,
            whole.about,
            (bug.published for bug in whole.bugs),
            chain.from_iterable(map(attempt_files.read, files)),
            attempt_files.read_failed(folder),
        )
    )
    answer = PublishAnswer(
        benchmark=benchmark,
        bugs=index.bugs,
        setups=len(index.setups),
        attempts=index.attempts,
        store=url,
    )
    if not printed_json(answer, as_json):
        counts = f"bugs: {index.bugs}, setups: {len(index.setups)}, attempts: {index.attempts}"
        results.print(f"{benchmark} in {url}: {counts}")
