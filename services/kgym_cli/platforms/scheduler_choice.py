"""Choice of a command's scheduler: --server, this machine's platform, or an emulated cloud."""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kgym.errors import InfrastructureError, UserError
from kgym_cli.output import people
from kgym_cli.platforms import emulated_cloud
from kgym_cli.platforms.platform_clients import joined
from kgym_cli.platforms.running_platform import Running, is_taken, running
from kgym_cli.platforms.shared_platform import platform_of
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.client import Client
    from kgym.transport.artifact_storage import Storage
    from kgym_scheduler.database.connection import Database


def usable_data_folder() -> Path:
    """Return the data folder, created if necessary; raise KgymError if it is unusable."""
    folder = settings().data
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Writing is tried: permissions, read-only mounts and a full disk all show up here, with one
        # message.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        message = f"the data folder {folder} cannot be used: {error.strerror or error}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InfrastructureError("disk_full", message) from error
        raise UserError("cannot_use_data", f"{message}; KGYM_DATA names another") from error
    return folder


def database_url() -> str:
    """Return the URL of the configured database, or else of this machine's platform."""
    if named := settings().database:
        return named
    folder = usable_data_folder()
    platform = running(folder)
    if platform is not None and platform.database is not None:
        return platform.database
    return f"sqlite+aiosqlite:///{folder / 'kgym.db'}"


def open_database() -> "AbstractAsyncContextManager[Database]":
    """Context manager: the database, migrated to the newest schema."""
    # Imported late: SQLAlchemy takes longer than a whole command that needs no database.
    from kgym_scheduler.database.connection import upgraded  # noqa: PLC0415

    return upgraded(database_url())


def storage() -> "Storage":
    """Return the configured storage."""
    from kgym_cli.platforms.composition import open_storage  # noqa: PLC0415 - as above

    return open_storage(settings().storage, settings().cache)


@contextmanager
def address(*, work: bool, quiet: bool = False) -> Iterator[tuple[str, str | None]]:
    """Yield URL and token of --server, or else of the data folder's platform.

    That platform is started if necessary. If commands started it, it lasts until the last of them
    has ended, and runs steps while one of them waits for jobs (`work`). With `quiet`, its URL is
    not printed.
    """
    url, token = settings().server, settings().token
    if url is not None:
        yield url, token
        return
    if emulated_cloud.is_chosen():
        with emulated_cloud.emulated_platform(usable_data_folder()) as own:
            yield own
        return
    with _own(work=work, quiet=quiet) as platform:
        yield platform.url, token or platform.owner


@contextmanager
def scheduler(*, work: bool) -> Iterator["Client"]:
    """Context manager: a client of the scheduler at `address`."""
    from kgym.client import Client  # noqa: PLC0415 - as above

    with address(work=work) as (url, token), Client(url, token) as client:
        yield client


@contextmanager
def _own(*, work: bool, quiet: bool) -> Iterator[Running]:
    """Context manager: the data folder's platform."""
    data = usable_data_folder()
    with joined(data, work=work):
        platform = platform_of(data)
        if work and not quiet:
            people.print(f"scheduler: {platform.url}  data: {data}", style="dim")
        try:
            yield platform
        except InfrastructureError as error:
            if is_taken(data):
                raise
            message = (
                f"this machine's platform has ended (its log: {data / 'log' / 'platform.log'});"
                " its jobs are kept: repeat the command, or use `kgym job wait`, to continue"
            )
            raise InfrastructureError("platform_ended", message) from error
