"""Which scheduler a command talks to: a named one, the one that runs here, or its own."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kgym.client import Client
from kgym.errors import UserError
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
    with contextlib.ExitStack() as stack:
        url = click.get_current_context().find_root().params.get("server")
        while url is None:
            url = _running(work=work) or _started(stack, work=work)
        yield stack.enter_context(Client(url))


def _running(*, work: bool) -> str | None:
    """Return where a platform listens that runs steps, if the command needs that."""
    found = running(data_folder())
    return found.url if found is not None and (found.work or not work) else None


def _started(stack: contextlib.ExitStack, *, work: bool) -> str | None:
    """Start a platform; None if another one was quicker."""
    # Its imports take longer than a command that needs no platform of its own.
    from kgym_cli.platform import Platform  # noqa: PLC0415

    try:
        own = stack.enter_context(Platform(data_folder(), work=work))
    except UserError as error:
        if error.reason == "data_in_use" and _running(work=work):
            return None
        raise
    if work:
        people.print(f"scheduler: {own.url}", style="dim")
    return own.url
