"""Clients of a data folder's shared platform: each command holds a shared lock while it lives.

The kernel releases the lock however a command ends. The platform exits once it gets the lock
exclusively; commands that come meanwhile wait until it has exited.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kgym.errors import InfrastructureError
from kgym_cli.platforms.running_platform import is_taken, running

# Held shared by each client, and exclusively by a platform that is ending.
CLIENTS = "clients.lock"
# Held shared by each client that waits for jobs; without any, no step starts.
WAITING = "waiting.lock"
# Most seconds for a platform's shutdown.
END_SECONDS = 60.0
_POLL_SECONDS = 0.02


@contextmanager
def joined(data: Path, *, work: bool) -> Iterator[None]:
    """Context manager: keep the data folder's platform alive; the last client waits for its end.

    With `work`, the platform also runs steps.
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
    """The platform's view of its clients."""

    def __init__(self, data: Path) -> None:
        self._clients = (data / CLIENTS).open("a")
        self._waiting = (data / WAITING).open("a")

    def gone(self) -> bool:
        """Return whether no client is left; if so, new ones wait until this process has exited."""
        return _lock(self._clients, fcntl.LOCK_EX)

    def work(self) -> bool:
        """Return whether any client waits for jobs."""
        # A client holds it shared: somebody waits for a job.
        if not _lock(self._waiting, fcntl.LOCK_EX):
            return True
        fcntl.flock(self._waiting, fcntl.LOCK_UN)
        return False


def _see_it_end(data: Path, file: IO[str]) -> None:
    """Wait for the platform's end if this was its last client."""
    limit = time.monotonic() + END_SECONDS
    while is_taken(data) and time.monotonic() < limit:
        platform = running(data)
        if platform is not None and platform.stays:
            return  # `kgym up`, which outlives clients
        if _lock(file, fcntl.LOCK_EX):
            fcntl.flock(file, fcntl.LOCK_UN)  # no client is left, but the platform still holds on
        elif _lock(file, fcntl.LOCK_SH):
            return  # other clients remain
        time.sleep(_POLL_SECONDS)


def _lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
