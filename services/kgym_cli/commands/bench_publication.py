"""`kgym bench publish` and `kgym bench site`."""

import asyncio
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgym.bench import attempt_files, dataset, publication
from kgym.bench.attempt_record import failed_setups
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.inputs.parameters import FILE, FOLDER
from kgym_cli.output import json_option, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.composition import open_benchmarks
from kgym_cli.settings import options_of

if TYPE_CHECKING:
    from kgym_monitor.benchmarks.site import SiteSource


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


class SiteAnswer(Answer):
    """A written site."""

    folder: Path
    pages: int


@click.command("site")
@options_of("bench site")
@click.argument("benchmark")
@click.argument("into", metavar="DIR", type=FOLDER)
@click.option(
    "--attempts",
    multiple=True,
    type=FILE,
    help="File of attempts of a dataset; may be repeated.  [default: attempts.jsonl in it]",
)
@json_option(SiteAnswer)
def site(benchmark: str, into: Path, attempts: tuple[Path, ...], as_json: bool) -> None:
    """Write the pages of BENCHMARK into DIR, for any web server.

    BENCHMARK is a dataset's folder or the name of a benchmark published in --benchmarks. The
    pages load nothing from other hosts. An earlier site in DIR is replaced.
    """
    extras.require("monitor")
    from kgym_monitor.benchmarks import site as files  # noqa: PLC0415 - needs the extra

    folder = Path(benchmark)
    # A folder wins over a published benchmark of the same name: it can be renamed, the other
    # cannot.
    if (folder / dataset.ABOUT).is_file():
        source = _of_folder(folder, attempts)
    elif attempts:
        raise UserError("no_dataset", f"{folder} holds no dataset: --attempts needs one")
    else:
        source = _published(benchmark)
    pages = files.write(source, into)
    if not printed_json(SiteAnswer(folder=into, pages=pages), as_json):
        results.print(f"{into}: {pages} pages")


def _of_folder(folder: Path, files: tuple[Path, ...]) -> "SiteSource":
    from kgym.bench.attempt_table import AttemptTable  # noqa: PLC0415 - needs the extra
    from kgym.bench.published_benchmark import Benchmark  # noqa: PLC0415
    from kgym_monitor.benchmarks.site import SiteSource  # noqa: PLC0415

    whole = dataset.load(folder)
    attempts = [
        attempt
        for file in files or (folder / attempt_files.NAME,)
        for attempt in attempt_files.read(file)
    ]
    try:
        table = AttemptTable.of(attempts)
    except ValueError as error:
        raise UserError("bad_attempts", str(error)) from error
    bugs = {bug.id: bug.published for bug in whole.bugs}
    facts = {name: bug.facts for name, bug in bugs.items()}
    about = whole.about
    failed = failed_setups(
        attempt_files.read_failed(folder),
        {(attempt.setup, attempt.bug, attempt.run) for attempt in attempts},
    )
    benchmark = Benchmark(about.name, about.description, about.sha256, facts, table, failed)
    return SiteSource(benchmark, bugs)


def _published(name: str) -> "SiteSource":
    from kgym.bench.published_benchmark import load  # noqa: PLC0415 - as above
    from kgym_monitor.benchmarks.site import SiteSource  # noqa: PLC0415

    async def read() -> SiteSource:
        _, store = open_benchmarks()
        benchmark = await load(store, name)
        return SiteSource(benchmark, await benchmark.bugs())

    return asyncio.run(read())
