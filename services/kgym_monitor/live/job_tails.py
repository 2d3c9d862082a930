"""Jobs whose logs or progress somebody watches: one stream of the scheduler's for each job."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from typing import IO

import structlog

from kgym.api.jobs import JobEvent
from kgym.api.states import State
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, KgymError

LINGER_SECONDS = 10.0
"""How long a job is still followed when nobody watches it: a page that is reloaded finds it."""
LOG_BYTES = 512 << 20
"""Of one attempt's log that is held, on disk, while the attempt runs."""
IN_MEMORY = 1 << 20
CHUNK = 256 << 10
PROGRESS_SECONDS = 0.5
"""How often who shows a job is told of its progress."""
TAILS = 200
"""Jobs at the same time."""

_log = structlog.get_logger()
Attempt = tuple[int, int]
"""A step's number and an attempt's."""


class _Log:
    """The log of one attempt so far."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self.size = 0

    def write(self, text: bytes) -> None:
        """Append to it, within the bound."""
        text = text[: LOG_BYTES - self.size]
        self._file.seek(0, 2)
        self._file.write(text)
        self.size += len(text)

    def read(self, start: int) -> bytes:
        """Return a part of it."""
        self._file.seek(start)
        return self._file.read(CHUNK)

    def close(self) -> None:
        """Forget it."""
        self._file.close()


class _Tail:
    """A job that is followed."""

    def __init__(self) -> None:
        self.logs: dict[Attempt, _Log] = {}
        self.latest: dict[int, tuple[int, bool]] = {}
        """Of each step: the number of its latest attempt, and whether that runs."""
        self.watchers = 0
        self.news = asyncio.Condition()
        self.error: KgymError | None = None
        self.ended = False
        self.task: asyncio.Task[None] | None = None

    def log(self, attempt: Attempt) -> _Log:
        if attempt not in self.logs:
            self.logs[attempt] = _Log()
        return self.logs[attempt]

    def take(self, event: JobEvent) -> None:
        """Note what an event says of the log of an attempt."""
        if event.step is None:
            return
        number = int(event.data["attempt"])
        if event.kind == "log":
            self.log((event.step, number)).write(event.data["text"].encode())
        elif event.kind == "state":
            self.latest[event.step] = number, event.data["state"] == State.RUNNING

    def has_ended(self, attempt: Attempt) -> bool:
        """Return whether the attempt will log no more."""
        latest, runs = self.latest.get(attempt[0], (0, False))
        return self.ended or attempt[1] < latest or (attempt[1] == latest and not runs)

    def close(self) -> None:
        """Forget the logs."""
        for log in self.logs.values():
            log.close()


class JobTails:
    """All jobs that are followed."""

    def __init__(self, client: AsyncClient, changed: Callable[[int], None]) -> None:
        self._client = client
        self._changed = changed
        self._tails: dict[int, _Tail] = {}
        self._open: set[_Tail] = set()
        """Those and the ones that have ended, as long as their logs are read."""

    @contextlib.asynccontextmanager
    async def watched(self, job: int) -> AsyncIterator[_Tail]:
        """Follow the job while the context lasts; who shows it is told of its progress."""
        tail = self._tails.get(job)
        if tail is None or tail.ended:
            if len(self._tails) >= TAILS:
                raise InfrastructureError(
                    "too_many_streams", f"{TAILS} jobs are followed; close a page, and try again"
                )
            tail = self._tails[job] = _Tail()
            self._open.add(tail)
            tail.task = asyncio.create_task(self._follow(job, tail))
        tail.watchers += 1
        try:
            yield tail
        finally:
            tail.watchers -= 1
            if not tail.watchers:
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._leave, tail)

    async def log(self, job: int, attempt: Attempt, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the log of a running attempt from this byte on, until the attempt has ended."""
        async with self.watched(job) as tail:
            log = tail.log(attempt)
            while True:
                ended = tail.has_ended(attempt)
                while start < log.size:
                    part = log.read(start)
                    start += len(part)
                    yield part
                if tail.error is not None:
                    raise tail.error
                if ended or start >= LOG_BYTES:
                    return
                async with tail.news:
                    await tail.news.wait_for(
                        lambda: log.size > start or tail.has_ended(attempt)  # noqa: B023
                    )

    async def close(self) -> None:
        """Follow nothing any more."""
        tails = list(self._open)
        tasks = [tail.task for tail in tails if tail.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for tail in tails:
            tail.close()

    def _leave(self, tail: _Tail) -> None:
        if not tail.watchers and tail.task is not None:
            tail.task.cancel()
            tail.close()
            self._open.discard(tail)

    async def _follow(self, job: int, tail: _Tail) -> None:
        told = 0.0
        try:
            async for event in self._client.events(job):
                tail.take(event)
                async with tail.news:
                    tail.news.notify_all()
                if event.kind == "progress" and time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    self._changed(job)
        except KgymError as error:
            _log.warning("a job is followed no more", job=job, reason=error.reason)
            tail.error = error
        finally:
            tail.ended = True
            if self._tails.get(job) is tail:
                del self._tails[job]
            async with tail.news:
                tail.news.notify_all()
