"""Where the platform of a data folder listens, if one runs."""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from kgym.errors import UserError

# The file that a running platform holds locked; it is empty until the platform listens.
ADDRESS = "platform.json"

# How long a platform that shall stay waits for one to end that commands have started.
PATIENCE_SECONDS = 30.0
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Running:
    """A platform that runs."""

    url: str
    stays: bool = True
    """Whether it was started to stay (`kgym up`), and not for as long as commands use it."""
    database: str | None = None
    """Its database, where that is a server's."""
    owner: str | None = None
    """A token for whoever can read this: the commands of the user who runs the platform."""


def running(data: Path) -> Running | None:
    """Return the platform that has this data folder now, once it listens."""
    try:
        with (data / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Running(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    return None


def is_taken(data: Path) -> bool:
    """Return whether a platform has the data folder, if only to start or to end."""
    try:
        with (data / ADDRESS).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def take(data: Path, *, stays: bool = True) -> IO[str]:
    """Lock the data folder until the file is closed, which the end of the process does too.

    Raises UserError `data_in_use` if another platform has it. A platform that shall stay
    waits a while for one that commands have started, which ends when they do.
    """
    data.mkdir(parents=True, exist_ok=True)
    file = (data / ADDRESS).open("a+")
    os.fchmod(
        file.fileno(), 0o600
    )  # the URL of a database holds its password, and there is the owner's token
    end = time.monotonic() + (PATIENCE_SECONDS if stays else _BUSY_SECONDS)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            other = running(data)
            hopeless = other is not None and (other.stays or not stays)
            if hopeless or time.monotonic() > end:
                file.close()
                where = other.url if other is not None else "not listening yet"
                raise UserError(
                    "data_in_use", f"another platform ({where}) has the data folder {data}"
                ) from None
        time.sleep(0.05)
    file.truncate(0)
    return file


def announce(lock: IO[str], platform: Running) -> None:
    """Tell commands on the locked data folder where the platform listens."""
    lock.truncate(0)
    lock.write(json.dumps(asdict(platform)))
    lock.flush()
