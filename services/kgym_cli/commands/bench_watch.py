"""`kgym bench watch`."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import get_args

import click

from kgym.bench.bug_record import Status
from kgym.errors import InfrastructureError
from kgym_benchmark.crawler.fetcher import LATELY, Fetcher
from kgym_benchmark.crawler.fix_commits import GitSites
from kgym_benchmark.crawler.watch import STATUSES, Sites, Visit, WatchOptions, visit
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import Exit, json_option, leave, people, printed_json, results
from kgym_cli.settings import options_of, settings

_WEEK = timedelta(days=7)
_NAP = 60.0


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--once/--weekly", default=True, help="Fetch once, or weekly until stopped.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(get_args(Status)),
    default=STATUSES,
    help="Only this list of bugs; may be repeated.",
)
@click.option("--most", type=click.IntRange(1), help="Only the first N bugs of each list.")
@click.option(
    "--threads", type=click.IntRange(0, 100), default=3, help="Discussions to fetch per bug."
)
@click.option(
    "--max-age",
    type=click.FloatRange(0),
    default=LATELY / 3600,
    help="Hours for which a fetched page is not fetched again.",
)
@options_of("bench watch")
@json_option(Visit)
def watch(
    folder: Path,
    once: bool,
    statuses: tuple[Status, ...],
    most: int | None,
    threads: int,
    max_age: float,
    as_json: bool,
) -> None:
    """Mirror syzbot's bugs into DIR, with their fixes and discussions; each visit makes a dataset.

    Each site gets one request a second. Unchanged pages are not transferred. If the command is
    interrupted or killed, repeat it. The exit status is 0 if all bugs were read, 3 if some could
    not be read or a site does not answer.
    """
    asked = settings()
    sites = Sites(
        asked.syzbot, asked.syzbot_namespace, asked.lore, GitSites(asked.git_site, asked.mirrors)
    )
    options = WatchOptions(statuses, most, threads)
    while True:
        begun = datetime.now().astimezone()
        fetcher = Fetcher(
            # Only these hosts: links in crawled pages are not followed elsewhere.
            folder / "pages",
            sites.all,
            pause=asked.crawl_pause,
            lately=max_age * 3600,
        )
        try:
            visit_result = visit(folder, sites, fetcher, options, people.print)
        except InfrastructureError as error:
            if once:
                raise
            people.print(error.message)
            visit_result = None
        finally:
            fetcher.close()
        if visit_result is not None:
            _show(visit_result, as_json=as_json)
            if once:
                leave(Exit.INFRASTRUCTURE if visit_result.failed else Exit.OK)
        _wait_until(begun + _WEEK)


def _show(visit_result: Visit, *, as_json: bool) -> None:
    if printed_json(visit_result, as_json):
        return
    about = visit_result.dataset
    results.print(
        f"{visit_result.listed} listed, {visit_result.new} new, {visit_result.changed} changed,"
        f" {visit_result.unchanged} unchanged, {len(visit_result.failed)} not read"
    )
    if about is not None:
        results.print(f"{about.bugs} bugs in {visit_result.folder}")


def _wait_until(then: datetime) -> None:
    """Sleep until a time of the wall clock."""
    people.print(f"next visit: {then:%Y-%m-%d %H:%M}")
    # In naps: a single long sleep would stand still while the machine is suspended.
    while datetime.now().astimezone() < then:
        time.sleep(_NAP)
