"""`kgym bench publish`."""

import asyncio
from itertools import chain
from pathlib import Path

import click

from kgym.bench import attempt_files, dataset, publication
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.output import json_option, print_json, results
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
    """The folder or bucket that it was published to."""


@click.command()
@options_of("bench publish")
@dataset_argument
@click.option(
    "--attempts",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Files of attempts, one a line; may be repeated.  [default: attempts.jsonl in DIR]",
)
@click.option("--name", help="Of the benchmark.  [default: the dataset's]")
@json_option(PublishAnswer)
def publish(folder: Path, attempts: tuple[Path, ...], name: str | None, as_json: bool) -> None:
    """Copy the dataset in DIR, and attempts on its bugs, to where the monitor reads them.

    Whoever may write to --benchmarks may publish; no scheduler is needed. Publishing again replaces
    the attempts: readers see all of the old ones or all of the new ones. The bugs of a benchmark
    never change: another dataset needs another name.
    """
    whole = dataset.load(folder)
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
        )
    )
    answer = PublishAnswer(
        benchmark=benchmark,
        bugs=index.bugs,
        setups=len(index.setups),
        attempts=index.attempts,
        store=url,
    )
    if as_json:
        print_json(answer)
    else:
        counts = f"bugs: {index.bugs}, setups: {len(index.setups)}, attempts: {index.attempts}"
        results.print(f"{benchmark} in {url}: {counts}", markup=False)
