"""Announcement and lock of the platform that uses a data folder."""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from kgym.errors import UserError

# File that a running platform keeps locked; empty until the platform listens.
ADDRESS = "platform.json"
# How long `kgym up` waits for a commands' platform to end.
PATIENCE_SECONDS = 30.0
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Running:
    """A running platform."""

    url: str
    stays: bool = True
    """Whether it was started by `kgym up`, not by commands for as long as they use it."""
    database: str | None = None
    """URL of its database, if that is a server."""
    owner: str | None = None
    """Token with all permissions, for commands of the user who runs the platform."""


def running(data: Path) -> Running | None:
    """Return the platform that uses the data folder, once it listens."""
    try:
        with (data / ADDRESS).open() as file:
            try:
                # A lock instead of a pid file: the kernel releases it even after SIGKILL, and ids
                # are reused.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Running(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    return None


def is_taken(data: Path) -> bool:
    """Return whether a platform uses the data folder, including during start and shutdown."""
    try:
        with (data / ADDRESS).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def take(data: Path, *, stays: bool = True) -> IO[str]:
    """Lock the data folder until the returned file is closed or the process ends.

    Raises UserError `data_in_use` if another platform has it. With `stays`, first wait for a
    platform that was started by commands, which ends with them.
    """
    data.mkdir(parents=True, exist_ok=True)
    file = (data / ADDRESS).open("a+")
    # The file will hold the database's password and the owner token.
    os.fchmod(file.fileno(), 0o600)
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
    """Publish the platform's URL for commands on the locked data folder."""
    lock.truncate(0)
    lock.write(json.dumps(asdict(platform)))
    lock.flush()
