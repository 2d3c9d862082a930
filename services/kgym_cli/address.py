"""Where the platform of a data folder listens, if one runs."""

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from kgym.errors import UserError

ADDRESS = "platform.json"
"""The file that a running platform holds locked; it tells the URL."""


def running(data: Path) -> str | None:
    """Return the URL of the platform that has this data folder now, if there is one."""
    return _told(data).get("url")


def database(data: Path) -> str | None:
    """Return the database of the platform that has this data folder now, if it has a server."""
    return _told(data).get("database")


def take(data: Path) -> IO[str]:
    """Lock the data folder until the file is closed, which the end of the process does too.

    Raises UserError `data_in_use` if another platform has it.
    """
    data.mkdir(parents=True, exist_ok=True)
    file = (data / ADDRESS).open("a+")
    os.fchmod(file.fileno(), 0o600)  # the URL of a database holds its password
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        url = running(data) or "starting"
        raise UserError(
            "data_in_use", f"another platform ({url}) has the data folder {data}"
        ) from None
    return file


def announce(lock: IO[str], url: str, database: str | None = None) -> None:
    """Tell commands on the locked data folder where the platform listens."""
    lock.truncate(0)
    lock.write(json.dumps({"url": url, "database": database, "pid": os.getpid()}))
    lock.flush()


def _told(data: Path) -> dict[str, Any]:
    """Return what the platform that holds the lock has written; nothing if there is none."""
    try:
        with (data / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        pass
    return {}
