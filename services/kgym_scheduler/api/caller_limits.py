"""Limits of one submitter: unfinished jobs, and bytes of submitted jobs."""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kgym.errors import TooMany
from kgym.web.request_limits import Buckets, RequestLimits

# How long a count of unfinished jobs is cached.
COUNT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CallerLimits(RequestLimits):
    """Limits of one caller, at each scheduler."""

    unfinished_jobs: int = 100_000
    """Unfinished jobs of a submitter, at all schedulers together."""
    bytes_per_second: float = 256 << 10
    """Of submitted jobs, on average: some 22 GB a day. Admins have no such limit."""
    bytes_at_once: int = 1 << 30
    """Bytes that may come in one burst."""


class SubmittedBytes:
    """Limits the bytes of the jobs that a submitter submits, as they are never deleted."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = limits.bytes_per_second
        self._buckets = Buckets(self._rate, limits.bytes_at_once, clock)

    def take(self, submitter: str, size: int) -> None:
        """Count bytes; raise TooMany if the submitter exceeds its rate."""
        rate = f"{self._rate / 1024:g} KiB a second"
        message = f"{submitter} has submitted more than {rate} for too long"
        self._buckets.take(submitter, size, "too_many_bytes", message)


class Quota:
    """Limits the unfinished jobs of a submitter."""

    # They are counted in the database every few seconds; in between, jobs that are submitted here
    # are added. So several schedulers may together accept a few seconds' jobs too many.

    def __init__(self, limits: CallerLimits, count: Callable[[str], Awaitable[int]]) -> None:
        self._limit = limits.unfinished_jobs
        self._count = count
        self._known: dict[str, tuple[float, int]] = {}

    async def take(self, submitter: str, new: int = 1) -> None:
        """Count new jobs; raise TooMany if the submitter would have more than it may."""
        # Counting at each submission would make ten thousand of them quadratic.
        now = time.monotonic()
        known = self._known.get(submitter, (-math.inf, 0))
        if now >= known[0] + COUNT_SECONDS:
            counted = now, await self._count(submitter)
            # Concurrent calls may have counted, and added their jobs, meanwhile.
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
