"""Blocking calls in threads: so many at once, and each ends when nobody waits for it any more."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

import requests
from google.api_core.exceptions import Forbidden, GoogleAPICallError, Unauthorized
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud.storage.exceptions import InvalidResponse
from urllib3.exceptions import HTTPError

from kgym.errors import InfrastructureError
from kgym.transport.gcs.call import Call

P = ParamSpec("P")
T = TypeVar("T")

END_SECONDS = 0.4
"""How long a call that was cancelled may take to end."""
_ERRORS = (
    GoogleAPICallError,
    GoogleAuthError,
    HTTPError,
    InvalidResponse,
    requests.RequestException,
)
_REFUSED = (Forbidden, GoogleAuthError, Unauthorized)


class Threads:
    """So many threads, for calls that go on for `patience` seconds without any progress."""

    def __init__(self, number: int, patience: float) -> None:
        self._pool = ThreadPoolExecutor(number, "gcs")
        self._patience = patience

    def close(self) -> None:
        """End them; calls that have not begun never do."""
        self._pool.shutdown(cancel_futures=True)

    def call(self) -> Call:
        """Return a new call."""
        return Call(self._patience)

    async def run(
        self, function: Callable[Concatenate[Call, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call in a thread, which ends soon after this is cancelled."""
        call = self.call()

        def called() -> T:
            call.check()
            return function(call, *args, **kwargs)

        running = asyncio.get_running_loop().run_in_executor(self._pool, called)
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            call.give_up()
            await asyncio.wait([running], timeout=END_SECONDS)
            raise
        except _ERRORS as error:
            raise _translated(error) from error

    async def yielded(self, call: Call, pieces: Generator[bytes]) -> AsyncGenerator[bytes]:
        """Yield what a generator yields that runs in threads."""
        loop = asyncio.get_running_loop()
        step: asyncio.Future[bytes] | None = None
        try:
            while True:
                step = loop.run_in_executor(self._pool, next, pieces, b"")
                chunk = await asyncio.shield(step)
                if not chunk:
                    return
                yield chunk
        except _ERRORS as error:
            raise _translated(error) from error
        finally:
            if step is None or step.done():
                await asyncio.shield(loop.run_in_executor(self._pool, pieces.close))
            else:  # cancelled: the thread is in it
                call.give_up()
                step.add_done_callback(lambda done: _close(done, pieces))


def _close(step: asyncio.Future[bytes], pieces: Generator[bytes]) -> None:
    step.exception()  # which nobody waits for
    pieces.close()


def _translated(error: Exception) -> InfrastructureError:
    if isinstance(error, _REFUSED) and not isinstance(error, TransportError):
        return InfrastructureError(
            "storage_refused",
            f"the bucket's owner does not allow this to these credentials: {error}",
        )
    return InfrastructureError("storage_failed", f"the bucket does not do this: {error}")
