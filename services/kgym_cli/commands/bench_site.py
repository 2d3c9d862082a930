"""`kgym bench site`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgym.api.benchmarks.publication import BenchmarkView, SetupView
from kgym.bench import attempt_files, dataset
from kgym.client import Client
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.output import json_option, print_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler

if TYPE_CHECKING:
    from kgym_monitor.benchmarks.site import SiteSource


class SiteAnswer(Answer):
    """The site that was written."""

    folder: Path
    pages: int


@click.command("site")
@click.argument("benchmark")
@click.argument("into", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--attempts",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Files of attempts, where BENCHMARK is a folder.  [default: attempts.jsonl in it]",
)
@json_option(SiteAnswer)
def site(benchmark: str, into: Path, attempts: tuple[Path, ...], as_json: bool) -> None:
    """Write the pages of BENCHMARK into DIR, for any web server.

    BENCHMARK is the name of a published one, or the folder of a dataset. The pages ask no other
    host for anything. A site that is in DIR is replaced.
    """
    extras.require("monitor")
    from kgym_monitor.benchmarks import site as files  # noqa: PLC0415 - needs the extra

    folder = Path(benchmark)
    if (folder / dataset.ABOUT).is_file():
        source = _of_folder(folder, attempts)
    elif attempts:
        raise UserError("no_dataset", f"{folder} holds no dataset, so --attempts means nothing")
    else:
        with scheduler(work=False) as client:
            source = _published(client, benchmark)
    pages = files.write(source, into)
    if as_json:
        print_json(SiteAnswer(folder=into, pages=pages))
    else:
        results.print(f"{into}: {pages} pages", markup=False)


def _of_folder(folder: Path, files: tuple[Path, ...]) -> "SiteSource":
    from kgym.bench.attempt_table import AttemptTable  # noqa: PLC0415 - needs the extra
    from kgym_monitor.benchmarks.held_benchmarks import HeldBenchmark  # noqa: PLC0415
    from kgym_monitor.benchmarks.site import SiteSource  # noqa: PLC0415

    whole = dataset.load(folder)
    own = folder / attempt_files.NAME
    found = [one for file in files or (own,) for one in attempt_files.read(file)]
    try:
        table = AttemptTable.of(found)
    except ValueError as error:
        raise UserError("bad_attempts", str(error)) from error
    about, now = whole.about, datetime.now(UTC)
    setups = [
        SetupView(number=number, setup=one, attempts=int((table.setup == number).sum()))
        for number, one in enumerate(table.setups)
    ]
    view = BenchmarkView(
        name=about.name,
        description=about.description,
        source=about.source,
        bugs=about.bugs,
        sha256=about.sha256,
        submitter="local",
        created_at=now,
        updated_at=now,
        version=1,
        published=about.bugs,
        attempts=len(table),
        setups=setups,
    )
    fixes = {one.id: one.published for one in whole.bugs}
    facts = {one: published.facts for one, published in fixes.items()}
    return SiteSource(HeldBenchmark(view, facts, table), fixes)


def _published(client: Client, name: str) -> "SiteSource":
    from kgym.bench.attempt_table import AttemptTable  # noqa: PLC0415 - needs the extra
    from kgym_monitor.benchmarks import site as files  # noqa: PLC0415
    from kgym_monitor.benchmarks.held_benchmarks import HeldBenchmark  # noqa: PLC0415
    from kgym_monitor.benchmarks.site import SiteSource  # noqa: PLC0415

    view = client.benchmark(name)
    facts = {one.id: one for one in client.benchmark_bugs(name)}
    rows = [one for one in client.benchmark_attempts(name) if one.setup < len(view.setups)]
    table = AttemptTable.of_rows(rows, [one.setup for one in view.setups])
    fixes = {one: client.benchmark_bug(name, one) for one in list(facts)[: files.BUGS]}
    return SiteSource(HeldBenchmark(view, facts, table), fixes)
