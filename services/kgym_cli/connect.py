"""Which scheduler a command talks to: a named one, the one that runs here, or its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kgym.client import Client
from kgym_cli.address import running
from kgym_cli.output import people


def data_folder() -> Path:
    """Return where the embedded platform keeps its database, artifacts and caches."""
    if named := os.environ.get("KGYM_DATA"):
        return Path(named)
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "kgym"


@contextmanager
def scheduler(*, work: bool) -> Iterator[Client]:
    """Connect to --server, else to the platform on the data folder, else start one.

    One that is started here lasts as long as the command, and takes up unfinished
    jobs only if the command waits for one (`work`).
    """
    server = click.get_current_context().find_root().params.get("server")
    url = server or running(data_folder())
    if url is not None:
        with Client(url) as client:
            yield client
        return
    # Its imports take longer than a command that needs no platform of its own.
    from kgym_cli.platform import Platform  # noqa: PLC0415

    with Platform(data_folder(), work=work) as own, Client(own.url) as client:
        if work:
            people.print(f"scheduler: {own.url}", style="dim")
        yield client
