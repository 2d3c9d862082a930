"""What one caller may ask for: requests a second, event streams, unfinished jobs, bytes, names."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgym.errors import UserError
from kgym_scheduler.api.problems import answer
from kgym_scheduler.errors import TooMany

BODY_LIMIT = 16 << 20
"""Bytes of a request's body."""
QUERY_LIMIT = 8 << 10
"""Bytes of a request's query."""
QUERY_NAMES = 50
"""Parameters in it."""
COUNT_SECONDS = 5.0
"""How long a count of unfinished jobs is believed."""
_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """What one caller (a token, or an address without one) may ask for, of each scheduler."""

    requests_per_second: float = 3000
    burst: int = 6000
    """Requests that may come at once after a pause."""
    streams: int = 200
    """Event streams that are open at the same time."""
    unfinished_jobs: int = 100_000
    """Jobs of a submitter that have not finished, whichever scheduler took them."""
    bytes_per_second: float = 256 << 10
    """Of jobs that are submitted, in the long run: some 22 GB a day; admins have no such limit."""
    bytes_at_once: int = 1 << 30
    """Bytes that may come at once after a pause."""


class _Buckets:
    """A token bucket for each caller, kept as the time at which it will be full again."""

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._interval = 1 / per_second
        self._depth = at_once * self._interval
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, caller: str, cost: int) -> float:
        """Take so much out of the bucket; return 0, or for how many seconds there is too little."""
        now = self._clock()
        if len(self._full_at) >= _CALLERS:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
        full_at = max(self._full_at.get(caller, now), now) + cost * self._interval
        wait = full_at - now - self._depth
        if wait > 0:
            return wait
        self._full_at[caller] = full_at
        return 0


class Rates:
    """Bounds the requests that each caller makes in a second."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = limits.requests_per_second
        self.buckets = _Buckets(self._rate, limits.burst, clock)

    def take(self, caller: str) -> None:
        """Count a request; raise TooMany if the caller has made too many."""
        if wait := self.buckets.take(caller, 1):
            raise TooMany(
                "too_many_requests",
                f"more than {self._rate:g} requests a second; wait, then repeat this one",
                retry_after=math.ceil(wait),
            )


class SubmittedBytes:
    """Bounds the bytes of the jobs that each submitter hands in: they are kept for ever."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = limits.bytes_per_second
        self._buckets = _Buckets(self._rate, limits.bytes_at_once, clock)

    def take(self, submitter: str, size: int) -> None:
        """Count bytes; raise TooMany if the submitter has handed in too many."""
        if wait := self._buckets.take(submitter, size):
            raise TooMany(
                "too_many_bytes",
                f"{submitter} has submitted more than {self._rate / 1024:g} KiB a second for long;"
                f" wait {math.ceil(wait)} s, then repeat this",
                retry_after=math.ceil(wait),
            )


class Streams:
    """Counts the event streams that each caller has open."""

    def __init__(self, limits: CallerLimits) -> None:
        self._limit = limits.streams
        self._open = Counter[str]()

    @contextlib.contextmanager
    def opened(self, caller: str) -> Iterator[None]:
        """Count one while the context lasts; raise TooMany if the caller has all it may."""
        if self._open[caller] >= self._limit:
            raise TooMany(
                "too_many_streams",
                f"{self._open[caller]} event streams are open; close one first",
                retry_after=1,
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # forget those that have none


class Quota:
    """Bounds the unfinished jobs of a submitter.

    They are counted in the database every few seconds, and meanwhile what is
    submitted here is added: so several schedulers can together let pass a few
    seconds' jobs too many.
    """

    def __init__(self, limits: CallerLimits, count: Callable[[str], Awaitable[int]]) -> None:
        self._limit = limits.unfinished_jobs
        self._count = count
        self._known: dict[str, tuple[float, int]] = {}

    async def take(self, submitter: str, new: int = 1) -> None:
        """Count new jobs; raise TooMany if the submitter would have more than it may."""
        now = time.monotonic()
        known = self._known.get(submitter, (-math.inf, 0))
        if now >= known[0] + COUNT_SECONDS:
            counted = now, await self._count(submitter)
            # Others may have counted at the same time, and have been let pass since.
            if self._known.get(submitter, known) == known:
                self._known[submitter] = counted
        at, jobs = self._known[submitter]
        if jobs + new > self._limit:
            raise TooMany(
                "too_many_jobs",
                f"{submitter} has {jobs} unfinished jobs; the limit is {self._limit}: "
                "wait until some have finished, or abort some",
            )
        self._known[submitter] = at, jobs + new


class QueryLimit:
    """Refuses a long query before anything reads it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request if its query is too long; else pass it on."""
        query = scope.get("query_string", b"")
        if len(query) > QUERY_LIMIT or query.count(b"&") >= QUERY_NAMES:
            limit = f"{QUERY_LIMIT} bytes and {QUERY_NAMES} parameters"
            error = UserError("query_too_long", f"the query is longer than {limit}")
            await answer(Request(scope), error, 414)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body that is longer than BODY_LIMIT, as soon as that is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the bytes that the application reads; refuse the body when they are too many."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        announced, seen = int(length), 0

        async def limited() -> Message:
            nonlocal seen
            if announced > BODY_LIMIT:
                raise _too_large()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise _too_large()
            return message

        await self._app(scope, limited, send)


def _too_large() -> HTTPException:
    return HTTPException(413, f"the body is longer than {BODY_LIMIT >> 20} MiB")
