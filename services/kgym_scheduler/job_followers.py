"""Followers of jobs: one reader of the database for each job, for any number of followers.

Those who join read what was said before, a crowd once; from there on, all are handed what the job's
reader has read, each event written as text once. Where followers wait, that text goes straight
to their connections: no task of theirs wakes. A quiet job costs nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgym.api.jobs import JobEvent
from kgym.errors import InfrastructureError, KgymError
from kgym.web.event_stream import SendNow
from kgym_scheduler.job_store import BATCH, JobStore

KEPT_BYTES = 1 << 20
"""Of a job's newest events that are held for its followers; who lags further reads by itself."""
GATHER_SECONDS = 0.0005
"""For each follower, up to GATHER_LIMIT: how long a job's news gather before they are read."""
GATHER_LIMIT = 0.1
WOKEN = 32
"""Followers that are told at once, which takes some 10 µs each, or 50 where one has to wake,"""
BREATH_SECONDS = 0.001
"""before the next ones are."""
POLL_SECONDS = 1.0
"""How often to look for what another process has written to SQLite, which cannot tell."""
DOUBT_SECONDS = 10.0
"""How often to do so where the database notifies us: a connection can die silently."""
RETRY_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
"""How long streams outlast a database that does not answer."""


class Told:
    """An event, and how the event stream says it."""

    __slots__ = ("event", "text")

    def __init__(self, event: JobEvent) -> None:
        self.event = event
        said = f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
        self.text = said.encode()


@dataclass(slots=True, eq=False)
class _Follower:
    send_now: SendNow | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Wakes it."""
    heard: int | None = None
    """While it waits: the number of the last event that it was told."""


class _Tail:
    """A job's newest events."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.followers: dict[_Follower, None] = {}
        self.news = asyncio.Event()
        """Set when there may be new events."""
        self.begun = self.done = 0
        """Number of the last read that was begun, and of the last that has ended."""
        self.final = False
        self.error: KgymError | None = None
        self.missed: dict[int, asyncio.Task[tuple[list[Told], int]]] = {}
        """What is being read, by the event after which: a crowd that joins reads it once."""
        self._since = self.newest = 0
        self._kept = deque[Told]()
        self._bytes = 0

    def begin(self, newest: int) -> None:
        """Note the number of the newest event."""
        self._since = self.newest = newest

    def take(self, events: Sequence[JobEvent]) -> None:
        """Keep these events, and drop old ones."""
        for told in map(Told, events):
            self._kept.append(told)
            self._bytes += len(told.text)
            self.newest = told.event.id
        while self._bytes > KEPT_BYTES:
            gone = self._kept.popleft()
            self._bytes -= len(gone.text)
            self._since = gone.event.id

    async def tell(self, since: int) -> None:
        """Tell the followers what came after this event, some at a time: others have work to do.

        Those are woken that wait for something else, or have to do more than to send it.
        """
        text = b"".join(told.text for told in self.after(since) or ())
        ends = self.final or self.error is not None
        for number, follower in enumerate(list(self.followers), 1):
            if follower in self.followers:
                self._tell(follower, since, text, ends=ends)
            if number % WOKEN == 0:
                await asyncio.sleep(BREATH_SECONDS)

    def _tell(self, follower: _Follower, since: int, text: bytes, *, ends: bool) -> None:
        sends = text and follower.heard == since and follower.send_now is not None
        if sends and follower.send_now is not None and follower.send_now(text):
            follower.heard = self.newest
        if ends or follower.heard != self.newest:
            follower.changed.set()

    def after(self, last: int) -> list[Told] | None:
        """Return the events after this one; None where they are no longer kept."""
        if last < self._since:
            return None
        found: list[Told] = []
        for told in reversed(self._kept):
            if told.event.id <= last:
                break
            found.append(told)
        return found[::-1]


class Followers:
    """All who follow jobs of this store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._tails: dict[int, _Tail] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        """They end by themselves: SQLite's driver leaves a thread behind a cancelled statement."""
        self._polling = False
        self._stopping = asyncio.Event()

    async def follow(
        self, job_id: int, last: int = 0, send_now: SendNow | None = None
    ) -> AsyncIterator[list[Told]]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        With `send_now`, those that come while the next is waited for may be sent by it instead.

        Raises InfrastructureError `scheduler_stopping`, or what is the matter with the
        database, and NotFound if there is no such job.
        """
        with self._joined(job_id, _Follower(send_now)) as (tail, follower):
            own = tail.begun + 1  # what was read before may be older than what the caller knows
            while True:
                follower.changed.clear()
                if self._stopping.is_set():
                    raise InfrastructureError("scheduler_stopping", "the scheduler is stopping")
                if tail.error is not None:
                    raise tail.error
                told: list[Told] = []
                if tail.done:
                    kept, end = tail.after(last), tail.newest
                    if kept is None:
                        kept, end = await self._missed(tail, last)
                    told = kept
                    last = told[-1].event.id if told else max(last, end)
                if told:
                    yield told
                elif tail.newest > last:
                    continue  # written while the ones before were read
                elif tail.final and tail.done >= own:
                    return
                else:
                    follower.heard = last
                    await follower.changed.wait()
                    last, follower.heard = follower.heard, None

    async def check(self, job_id: int) -> None:
        """Raise NotFound if there is no such job: its reader finds out, for all who ask."""
        with self._joined(job_id, _Follower(None)) as (tail, follower):
            while not (tail.done or tail.error or self._stopping.is_set()):
                follower.changed.clear()
                await follower.changed.wait()
            if tail.error is not None:
                raise tail.error

    def wake(self, job_ids: Iterable[int] | None) -> None:
        """Let the readers of these jobs, or all, look for news."""
        for job_id in list(self._tails) if job_ids is None else job_ids:
            if tail := self._tails.get(job_id):
                tail.news.set()

    def hang_up(self) -> None:
        """End all streams, and let no new one begin."""
        self._stopping.set()
        for tail in self._tails.values():
            tail.news.set()
            for follower in tail.followers:
                follower.changed.set()

    async def stop(self) -> None:
        """End all streams, and wait until nothing is being read."""
        self.hang_up()
        await asyncio.gather(*self._tasks)

    # --- within ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _joined(self, job_id: int, follower: _Follower) -> Iterator[tuple[_Tail, _Follower]]:
        tail = self._tails.get(job_id)
        if tail is None:
            tail = self._tails[job_id] = _Tail(job_id)
            self._start(self._read(tail))
            if not self._polling:
                self._polling = True
                self._start(self._poll())
        tail.news.set()
        tail.followers[follower] = None
        try:
            yield tail, follower
        finally:
            del tail.followers[follower]
            if not tail.followers:
                self._forget(tail)

    def _forget(self, tail: _Tail) -> None:
        if self._tails.get(tail.job_id) is tail:
            del self._tails[tail.job_id]
        tail.news.set()  # so that its reader ends

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Hear of, or look for, events that other processes have written, while anybody follows."""
        listening = asyncio.create_task(self._store.database.listen(self.wake))
        try:
            await self._look_for_others()
        finally:
            self._polling = False
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _look_for_others(self) -> None:
        tells = self._store.database.tells
        seen: int | None = None
        while self._tails and not self._stopping.is_set():
            with contextlib.suppress(InfrastructureError):
                seen, job_ids = await self._store.said(seen)
                self.wake(job_ids)
            with contextlib.suppress(TimeoutError):
                pause = DOUBT_SECONDS if tells else POLL_SECONDS
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _missed(self, tail: _Tail, last: int) -> tuple[list[Told], int]:
        """Return events after this one that are no longer kept; and the newest when it was read."""
        reading = tail.missed.get(last)
        if reading is None:
            reading = tail.missed[last] = asyncio.create_task(self._read_missed(tail, last))
            self._tasks.add(reading)
            reading.add_done_callback(self._tasks.discard)
        return await asyncio.shield(reading)

    async def _read_missed(self, tail: _Tail, last: int) -> tuple[list[Told], int]:
        newest = tail.newest
        try:
            _, events = await self._store.events(tail.job_id, last)
        finally:
            del tail.missed[last]
        return [Told(event) for event in events], newest

    async def _read(self, tail: _Tail) -> None:
        """Read the job's new events, as long as it has followers."""
        clock = asyncio.get_running_loop().time
        failing_from: float | None = None
        while tail.error is None:
            await tail.news.wait()
            if self._stopping.is_set() or not tail.followers:
                return
            tail.news.clear()
            pause = min(GATHER_LIMIT, GATHER_SECONDS * len(tail.followers))
            since = tail.newest
            try:
                await self._look(tail)
                failing_from = None
            except InfrastructureError as error:
                failing_from = failing_from or clock()
                if clock() >= failing_from + PATIENCE_SECONDS:
                    tail.error = error
                pause = RETRY_SECONDS
                tail.news.set()
            except KgymError as error:
                tail.error = error
            await tail.tell(since)
            await asyncio.sleep(pause)
        self._forget(tail)

    async def _look(self, tail: _Tail) -> None:
        tail.begun += 1
        number = tail.begun
        if not tail.done:
            final, newest = await self._store.end(tail.job_id)
            tail.begin(newest)
        else:
            final, events = await self._store.events(tail.job_id, tail.newest)
            tail.take(events)
            if len(events) == BATCH:
                final = False
                tail.news.set()
        tail.final, tail.done = final, number
