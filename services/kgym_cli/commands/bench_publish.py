"""`kgym bench publish`."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import click

from kgym.api.benchmarks.attempts import AttemptRecord
from kgym.api.benchmarks.publication import (
    ATTEMPTS_AT_ONCE,
    BenchmarkAbout,
)
from kgym.bench import attempt_files, dataset
from kgym.bench.bug_record import BugRecord
from kgym.client import Client
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.output import json_option, print_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler

BUGS_AT_ONCE = 50
BYTES = 4 << 20
"""Of the patches of one batch of attempts."""


class PublishAnswer(Answer):
    """What was published."""

    benchmark: str
    bugs: int
    attempts: int
    changed: int
    """Of both, what is new or other than before."""


@click.command()
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
    """Put the dataset in DIR, and attempts on it, where the monitor shows them.

    What was published before is not sent twice in vain: attempts of the same bug, setup and run are
    replaced. A dataset never changes; another one needs another name.
    """
    whole = dataset.load(folder)
    about = whole.about
    own = folder / attempt_files.NAME
    files = attempts or ((own,) if own.exists() else ())
    named = name or whole.name
    with scheduler(work=False) as client:
        client.publish(
            named,
            BenchmarkAbout(
                description=about.description,
                source=about.source,
                bugs=about.bugs,
                sha256=about.sha256,
            ),
        )
        changed = sum(
            client.publish_bugs(named, [bug.published for bug in some]).changed
            for some in _parts(whole.bugs)
        )
        sent, more = _publish_attempts(
            client, named, chain.from_iterable(map(attempt_files.read, files))
        )
    answer = PublishAnswer(benchmark=named, bugs=len(whole), attempts=sent, changed=changed + more)
    if as_json:
        print_json(answer)
    else:
        told = f"{named}: {len(whole)} bugs, {sent} attempts; {answer.changed} are new or other"
        results.print(told, markup=False)


def _publish_attempts(client: Client, name: str, found: Iterator[AttemptRecord]) -> tuple[int, int]:
    """Send attempts; return how many there were, and how many of them have changed something."""
    sent = changed = 0
    for some in _batches(found):
        changed += client.publish_attempts(name, some).changed
        sent += len(some)
    return sent, changed


def _parts(bugs: Sequence[BugRecord]) -> Iterator[Sequence[BugRecord]]:
    for start in range(0, len(bugs), BUGS_AT_ONCE):
        yield bugs[start : start + BUGS_AT_ONCE]


def _batches(found: Iterator[AttemptRecord]) -> Iterator[list[AttemptRecord]]:
    """Yield attempts in lists that fit into a request."""
    some: list[AttemptRecord] = []
    size = 0
    for one in found:
        length = len(one.diff or "")
        if some and (len(some) == ATTEMPTS_AT_ONCE or size + length > BYTES):
            yield some
            some, size = [], 0
        some.append(one)
        size += length
    if some:
        yield some
