"""One operation on the store: tried again while a fault may pass, ended when it is given up."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import TransportError
from google.cloud.storage.exceptions import InvalidResponse

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""How long an operation goes on trying without any progress."""
_PAUSES = (0.1, 20.0)
"""Seconds: of the first pause, and of the longest; each may be twice as long as the one before."""
_PASSING = {408, 409, 429, 500, 502, 503, 504}
_LOST = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    TransportError,
)


class GivenUp(Exception):
    """Nobody waits for this any more."""


class Call:
    """An operation as it goes on in a thread.

    It decorates what shall be tried again, and so is a `retry` for Google's library.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._given_up = threading.Event()
        self._faults = 0
        self._since: float | None = None
        """When the first fault came since something went on."""

    def give_up(self) -> None:
        """Let it end soon, by `GivenUp`, wherever it is."""
        self._given_up.set()

    def check(self) -> None:
        """Raise GivenUp if it was given up."""
        if self._given_up.is_set():
            raise GivenUp

    def went_on(self) -> None:
        """Note progress: what fails from now on is a new fault."""
        self._faults, self._since = 0, None

    def wait(self, error: Exception) -> None:
        """Wait before the next try; raise the error if it does not pass, or did not for long."""
        now = time.monotonic()
        self._since = self._since or now
        if not passing(error) or now - self._since > self._patience:
            raise error
        first, longest = _PAUSES
        # Chance keeps those apart that were all throttled at the same time.
        pause = random.uniform(0.5, 1.0) * min(first * 2**self._faults, longest)  # noqa: S311
        self._faults += 1
        self._given_up.wait(pause)
        self.check()

    def __call__(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return the function, tried again while it fails for a while."""

        def tried() -> T:
            while True:
                self.check()
                try:
                    found = function()
                except Exception as error:  # noqa: BLE001 - raised again unless it passes
                    self.wait(error)
                else:
                    self.went_on()
                    return found

        return tried


def passing(error: Exception) -> bool:
    """Return whether the same may succeed later: a lost connection, a busy or throttling store."""
    if isinstance(error, GoogleAPICallError):
        return error.code in _PASSING
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _PASSING
    return isinstance(error, _LOST)
