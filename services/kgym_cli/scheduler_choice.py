"""Which scheduler a command talks to: a named one, the one that runs here, or its own."""

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgym.errors import InfrastructureError, UserError
from kgym_cli.output import people
from kgym_cli.platform_clients import joined
from kgym_cli.running_platform import Running, running
from kgym_cli.shared_platform import platform_of

if TYPE_CHECKING:
    from kgym.client import Client
    from kgym.transport.artifact_storage import LocalStorage
    from kgym_scheduler.database.connection import Database

_CHECKOUT = Path(__file__).resolve().parents[2]


def data_folder() -> Path:
    """Return where the embedded platform keeps its database, artifacts and caches."""
    if named := os.environ.get("KGYM_DATA"):
        return Path(named)
    if all((_CHECKOUT / name).is_file() for name in ("run", "pyproject.toml")):
        return _CHECKOUT / ".kgym"  # as `./run` says
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "kgym"


def usable_data_folder() -> Path:
    """Return the data folder; it is made if need be. Raise KgymError if it cannot be used."""
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        said = f"the data folder {folder} cannot be used: {error.strerror or error}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InfrastructureError("disk_full", said) from error
        raise UserError("cannot_use_data", f"{said}; KGYM_DATA names another") from error
    return folder


def syzkaller_folder() -> Path | None:
    """Return where syzkaller's binaries are, for workers of this machine; None without any."""
    named = os.environ.get("KGYM_SYZKALLER")
    return Path(named) if named else None


def database_url() -> str:
    """Return the database that commands work on which need no scheduler."""
    if named := os.environ.get("KGYM_DATABASE"):
        return named
    folder = usable_data_folder()
    found = running(folder)
    if found is not None and found.database is not None:
        return found.database
    return f"sqlite+aiosqlite:///{folder / 'kgym.db'}"


@asynccontextmanager
async def open_database() -> AsyncIterator["Database"]:
    """Open it, with its tables in their newest form."""
    # Its imports take longer than a command that needs no database.
    from kgym_scheduler.database.connection import Database, upgrade  # noqa: PLC0415

    url = database_url()
    await upgrade(url)
    database = Database(url)
    try:
        yield database
    finally:
        await database.close()


def storage() -> "LocalStorage":
    """Return where artifacts are: in KGYM_STORAGE, or with this machine's platform."""
    from kgym.transport.artifact_storage import LocalStorage  # noqa: PLC0415 - as above

    return LocalStorage(Path(os.environ.get("KGYM_STORAGE") or data_folder() / "artifacts"))


@contextmanager
def address(*, work: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the URL and the token of --server, else of the data folder's platform.

    That is started if need be. One that commands have started lasts until the last of them has
    ended, and runs steps if one of them waits for jobs (`work`).
    """
    options = click.get_current_context().find_root().params
    url, token = options.get("server"), options.get("token")
    if url is not None:
        yield url, token
        return
    with _own(work=work) as found:
        yield found.url, token or found.owner


@contextmanager
def scheduler(*, work: bool) -> Iterator["Client"]:
    """Connect to the scheduler at its `address`."""
    from kgym.client import Client  # noqa: PLC0415 - as above

    with address(work=work) as (url, token), Client(url, token) as client:
        yield client


@contextmanager
def _own(*, work: bool) -> Iterator[Running]:
    """Use the platform of the data folder."""
    data = usable_data_folder()
    with joined(data, work=work):
        found = platform_of(data)
        if work:
            people.print(f"scheduler: {found.url}  data: {data}", style="dim", markup=False)
        yield found
