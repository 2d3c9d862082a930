"""`kgym du`: disk usage."""

import os
from pathlib import Path

import click
from pydantic import Field
from rich.markup import escape

from kgym.api.key_value_tags import as_written
from kgym.api.storage import StorageView
from kgym_cli.output import json_option, people, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler
from kgym_cli.settings import settings

_LOCAL = ("cache/suitecache", "cache/sources", "cache/guest", "work", "log")
_SHOWN = 10


class LocalUse(Answer):
    """A subfolder of this machine's data folder."""

    folder: str
    bytes: int


class DuAnswer(Answer):
    """Storage of the scheduler, and folders of this machine."""

    storage: StorageView
    local: list[LocalUse] | None = Field(
        description="caches (compiled trees, sources, guest images), work folders and logs of this"
        " machine; null for a remote scheduler (--server)"
    )


@click.command()
@json_option(DuAnswer)
def du(as_json: bool) -> None:
    """Show disk usage: artifacts by age and job, compiled trees, caches, the database."""
    chosen = settings()
    with scheduler(work=False) as client:
        stored = client.storage()
    local = None
    # Folders of another machine cannot be measured from here.
    if chosen.server is None:
        local = [LocalUse(folder=name, bytes=_size(chosen.data / name)) for name in _LOCAL]
    answer = DuAnswer(storage=stored, local=local)
    if stored.warning:
        people.print(stored.warning)
    if not printed_json(answer, as_json):
        _print(answer)


def _size(folder: Path) -> int:
    """Return the bytes of all files below a folder, without those that vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            # Allocated blocks, not the size: disk images are sparse. st_blocks counts units of 512
            # bytes on every file system (stat(2)).
            total += status.st_blocks * 512
    return total


def _print(answer: DuAnswer) -> None:
    stored = answer.storage
    rows = [(str(kind.kind), _mb(kind.bytes), str(kind.number)) for kind in stored.kinds]
    rows += [(folder.folder, _mb(folder.bytes), "") for folder in answer.local or []]
    print_table("what", "MB", "number", rows=rows)
    if stored.jobs:
        jobs = [
            (
                str(job.job),
                str(job.state),
                _mb(job.bytes),
                escape(" ".join(map(as_written, job.tags))),
            )
            for job in stored.jobs[:_SHOWN]
        ]
        print_table("job", "state", "MB", "tags", rows=jobs)
    budget = f", budget {_mb(stored.budget)} MB" if stored.budget is not None else ""
    free = f", {_mb(stored.free)} MB free" if stored.free is not None else ""
    results.print(f"{_mb(stored.bytes)} MB stored{budget}{free}")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"
