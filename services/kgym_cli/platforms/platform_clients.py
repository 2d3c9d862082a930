"""Who uses the platform of a data folder: each command holds a lock for as long as it lives.

The kernel takes the lock back however a command ends. The platform's process ends when it gets
the lock for itself: then nobody is left, and whoever comes meanwhile waits for its end.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kgym.errors import InfrastructureError
from kgym_cli.platforms.running_platform import is_taken, running

# Held shared by each client, and alone by a platform that has none and ends.
CLIENTS = "clients.lock"
# Held shared by each client that waits for jobs; without any, no step begins.
WAITING = "waiting.lock"
# How long the end of a platform may take.
END_SECONDS = 60.0
_POLL_SECONDS = 0.02


@contextmanager
def joined(data: Path, *, work: bool) -> Iterator[None]:
    """Keep the platform of the data folder alive; if nobody else does, see it end afterwards.

    With `work`, let it run steps, too.
    """
    with (data / CLIENTS).open("a") as file, (data / WAITING).open("a") as waiting:
        limit = time.monotonic() + END_SECONDS
        while not _lock(file, fcntl.LOCK_SH):
            if time.monotonic() > limit:
                raise InfrastructureError(
                    "platform_ending",
                    f"the platform of {data} has been ending for {END_SECONDS:g} s: see its log in"
                    f" {data / 'log'}",
                )
            time.sleep(_POLL_SECONDS)
        try:
            if work:
                fcntl.flock(waiting, fcntl.LOCK_SH)
            yield
        finally:
            waiting.close()
            fcntl.flock(file, fcntl.LOCK_UN)
            _see_it_end(data, file)


class Clients:
    """The clients of a data folder, as its platform sees them."""

    def __init__(self, data: Path) -> None:
        self._clients = (data / CLIENTS).open("a")
        self._waiting = (data / WAITING).open("a")

    def gone(self) -> bool:
        """Return whether none is left; from then on, none comes before this process has ended."""
        return _lock(self._clients, fcntl.LOCK_EX)

    def work(self) -> bool:
        """Return whether any waits for jobs."""
        if not _lock(self._waiting, fcntl.LOCK_EX):
            return True
        fcntl.flock(self._waiting, fcntl.LOCK_UN)
        return False


def _see_it_end(data: Path, file: IO[str]) -> None:
    """Wait until the platform has ended if this was its last client."""
    limit = time.monotonic() + END_SECONDS
    while is_taken(data) and time.monotonic() < limit:
        platform = running(data)
        if platform is not None and platform.stays:
            return  # it was not started for clients
        if _lock(file, fcntl.LOCK_EX):
            fcntl.flock(file, fcntl.LOCK_UN)  # no client is left; the platform will notice that
        elif _lock(file, fcntl.LOCK_SH):
            return  # others are there
        time.sleep(_POLL_SECONDS)


def _lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
