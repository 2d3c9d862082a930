"""Followers of jobs: one reader of the database for each job, whatever its number of followers.

A new follower reads the earlier events; concurrent ones share that read. From then on, all
followers get what the job's reader reads, and each event is serialised once. A quiet job costs
nothing but a share of one query every POLL_SECONDS.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from kgym.api.jobs import JobEvent
from kgym.errors import InfrastructureError, KgymError
from kgym_scheduler.job_store import BATCH, JobStore

# Bytes of a job's newest events that are kept for its followers. One that lags reads the database.
KEPT_BYTES = 1 << 20
# Minimum time between two reads of a job: a chatty one would wake its followers all the time. It is
# short, as a job often ends milliseconds after its last line of log, and a client waits for it.
GATHER_SECONDS = 0.02
# How often to look for events that other schedulers have committed.
POLL_SECONDS = 0.5
RETRY_SECONDS = 0.5
# How long streams survive a database that does not answer.
PATIENCE_SECONDS = 30.0


class StreamedEvent:
    """An event with its text in the event stream."""

    __slots__ = ("event", "text")

    def __init__(self, event: JobEvent) -> None:
        self.event = event
        data = event.model_dump_json()
        self.text = f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()


class _Tail:
    """A followed job's newest events."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        # Each is set when there are events for its follower.
        self.followers: set[asyncio.Event] = set()
        # Set when there may be new events to read.
        self.news = asyncio.Event()
        # Number of the last event that a poll has seen.
        self.polled = 0
        # Numbers of the last read that was started, and of the last that has ended.
        self.begun = self.done = 0
        self.final = False
        self.error: KgymError | None = None
        # Pending reads of earlier events, by the event after which they begin.
        self.missed: dict[int, asyncio.Task[tuple[list[StreamedEvent], int]]] = {}
        self._since = self.newest = 0
        self._kept = deque[StreamedEvent]()
        self._bytes = 0

    def begin(self, newest: int) -> None:
        """Set the number of the newest event; later ones are kept."""
        self._since = self.newest = newest

    def take(self, events: Sequence[JobEvent]) -> None:
        """Keep these events; drop old ones."""
        for event in map(StreamedEvent, events):
            self._kept.append(event)
            self._bytes += len(event.text)
            self.newest = event.event.id
        while self._bytes > KEPT_BYTES:
            dropped = self._kept.popleft()
            self._bytes -= len(dropped.text)
            self._since = dropped.event.id

    def after(self, last: int) -> list[StreamedEvent] | None:
        """Return the events after number `last`; None if they are no longer kept."""
        if last < self._since:
            return None
        newer: list[StreamedEvent] = []
        for event in reversed(self._kept):
            if event.event.id <= last:
                break
            newer.append(event)
        return newer[::-1]

    def wake_followers(self) -> None:
        """Wake all followers."""
        for follower in self.followers:
            follower.set()


class Followers:
    """The followers of all jobs in this store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._tails: dict[int, _Tail] = {}
        # They end by themselves: SQLite's driver leaves a thread behind a cancelled statement.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._polling = False
        self._stopping = asyncio.Event()

    async def follow(self, job_id: int, last: int = 0) -> AsyncIterator[list[StreamedEvent]]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        Raises InfrastructureError `scheduler_stopping` or the database's error, and NotFound if
        the job does not exist.
        """
        with self._joined(job_id) as (tail, changed):
            own = tail.begun + 1  # earlier reads may be older than what the caller knows
            while True:
                changed.clear()
                if self._stopping.is_set():
                    raise InfrastructureError("scheduler_stopping", "the scheduler is stopping")
                if tail.error is not None:
                    raise tail.error
                events: list[StreamedEvent] = []
                if tail.done:
                    kept, end = tail.after(last), tail.newest
                    if kept is None:
                        kept, end = await self._missed(tail, last)
                    events = kept
                    last = events[-1].event.id if events else max(last, end)
                if events:
                    yield events
                elif tail.newest > last:
                    continue  # written while the ones before were read
                elif tail.final and tail.done >= own:
                    return
                else:
                    await changed.wait()

    async def check(self, job_id: int) -> None:
        """Raise NotFound if the job does not exist, as the job's reader finds out."""
        with self._joined(job_id) as (tail, changed):
            while not (tail.done or tail.error or self._stopping.is_set()):
                changed.clear()
                await changed.wait()
            if tail.error is not None:
                raise tail.error

    def wake(self, job_ids: Iterable[int]) -> None:
        """Let the readers of these jobs look for new events."""
        for job_id in job_ids:
            if tail := self._tails.get(job_id):
                tail.news.set()

    def hang_up(self) -> None:
        """End all streams, and let no new one begin."""
        self._stopping.set()
        for tail in self._tails.values():
            tail.news.set()
            tail.wake_followers()

    async def stop(self) -> None:
        """End all streams, and wait until nothing is being read."""
        self.hang_up()
        await asyncio.gather(*self._tasks)

    # --- within ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _joined(self, job_id: int) -> Iterator[tuple[_Tail, asyncio.Event]]:
        tail = self._tails.get(job_id)
        if tail is None:
            tail = self._tails[job_id] = _Tail(job_id)
            self._start(self._read(tail))
            if not self._polling:
                self._polling = True
                self._start(self._poll())
        tail.news.set()
        changed = asyncio.Event()
        tail.followers.add(changed)
        try:
            yield tail, changed
        finally:
            tail.followers.discard(changed)
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
        """Look for events that other schedulers have written, while there are followers."""
        # PostgreSQL's NOTIFY would report them at once, but its lock at commit makes all
        # transactions wait for each other.
        while self._tails and not self._stopping.is_set():
            with contextlib.suppress(InfrastructureError):
                for job_id, last_event in (await self._store.last_events(self._tails)).items():
                    tail = self._tails.get(job_id)
                    if tail and last_event > max(tail.newest, tail.polled):
                        tail.polled = last_event
                        tail.news.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), POLL_SECONDS)
        self._polling = False

    async def _missed(self, tail: _Tail, last: int) -> tuple[list[StreamedEvent], int]:
        """Return events that are no longer kept, and the newest event when they were read."""
        reading = tail.missed.get(last)
        if reading is None:
            reading = tail.missed[last] = asyncio.create_task(self._read_missed(tail, last))
            self._tasks.add(reading)
            reading.add_done_callback(self._tasks.discard)
        return await asyncio.shield(reading)

    async def _read_missed(self, tail: _Tail, last: int) -> tuple[list[StreamedEvent], int]:
        newest = tail.newest
        try:
            _, events = await self._store.events(tail.job_id, last)
        finally:
            del tail.missed[last]
        return [StreamedEvent(event) for event in events], newest

    async def _read(self, tail: _Tail) -> None:
        """Read the job's new events, as long as it has followers."""
        clock = asyncio.get_running_loop().time
        failing_from: float | None = None
        while tail.error is None:
            await tail.news.wait()
            if self._stopping.is_set() or not tail.followers:
                return
            tail.news.clear()
            pause = GATHER_SECONDS
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
            tail.wake_followers()
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
