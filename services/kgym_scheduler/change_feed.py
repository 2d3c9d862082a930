"""The feed of all jobs' changes: one reader of the database for all subscribers.

It reads when this scheduler has committed a change, and twice a second for those of others. Each
read finds all changes since the last, so a busy platform costs at most ten reads a second. Without
subscribers it reads nothing.
"""

# No transaction does anything for the feed. PostgreSQL's NOTIFY would report each change at once,
# but it takes a lock at commit, so that transactions wait for each other.

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kgym.api.changes import Change, ChangePage, WorkerChange
from kgym.api.jobs import WorkerState
from kgym.errors import InfrastructureError, KgymError
from kgym_scheduler.database import views
from kgym_scheduler.job_store import JobStore

# How far a cursor may be behind the newest number. Catching up from further costs too much.
OLDEST = 1_000_000
# Bytes of the newest changes that are held for all subscribers. One that lags reads the database.
KEPT_BYTES = 4 << 20
# How long changes gather before they are read.
GATHER_SECONDS = 0.1
# How often to read what other schedulers have committed.
POLL_SECONDS = 0.5
UNSETTLED_SECONDS = 0.01
# How often to look at the workers.
WORKER_SECONDS = 1.0
# After this many numbers without a change, subscribers get a cursor alone, or theirs would expire.
MARK = 1000
RETRY_SECONDS = 0.5
# How long streams survive a database that does not answer.
PATIENCE_SECONDS = 30.0
# Maximum number of reads for one page.
WINDOWS = 10


class _Message(NamedTuple):
    number: int
    """Number of the message in this process, from 1."""
    cursor: int | None
    """None: the message does not move the cursor."""
    text: bytes


class ChangeFeed:
    """The changes of all jobs in this store, and of its workers."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._log = store.change_log
        # Each is set when there are messages for its subscriber.
        self._subscribers: set[asyncio.Event] = set()
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        # The number up to which the reader has read; None while there is no reader.
        self._horizon: int | None = None
        self._begun = asyncio.Event()
        self._kept = deque[_Message]()
        # Bytes of the kept messages, and the number of the newest.
        self._bytes = self._newest = 0
        self._workers: Mapping[str, WorkerState] | None = None
        self._workers_at = 0.0
        self._error: KgymError | None = None
        self._stopping = False

    def wake(self) -> None:
        """Let the reader look for changes."""
        if self._subscribers:
            self._news.set()

    async def page(self, after: int | None, limit: int) -> ChangePage:
        """Return the next changes; without a cursor, none and the end of the feed."""
        end = await self._log.settled_end()
        settled = end.settled or 0
        if after is None or not _known(after, end.newest):
            reset = after is not None
            return ChangePage(changes=[], next=str(settled), more=False, reset=reset)
        changes: list[Change] = []
        for _ in range(WINDOWS):
            if after >= settled or len(changes) == limit:
                break
            rows, after = await self._log.between(after, settled, limit - len(changes))
            changes += map(views.change, rows)
        return ChangePage(changes=changes, next=str(after), more=after < settled, reset=False)

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """Yield the changes after this cursor, or from now on, as server-sent events.

        Raises InfrastructureError `scheduler_stopping`, or the database's error.
        """
        with self._joined() as news:
            newest = (await self._log.end()).newest
            known = after is not None and _known(after, newest)
            last = after if known and after is not None else await self._present()
            yield _event("begin" if known or after is None else "reset", last)
            place = -1  # the kept messages may begin after the cursor: read the database first
            while True:
                self._check()
                news.clear()
                kept = self._after(place)
                if kept is None:
                    place, horizon = self._newest, await self._present()
                    if horizon - last > OLDEST:
                        last = horizon
                        yield _event("reset", last)
                    while last < horizon:
                        rows, last = await self._log.between(last, horizon)
                        if rows:
                            yield b"".join(map(_text, rows))
                elif kept:
                    place = kept[-1].number
                    new = [m for m in kept if m.cursor is None or m.cursor > last]
                    last = max([last, *(m.cursor for m in new if m.cursor is not None)])
                    if new:
                        yield b"".join(message.text for message in new)
                else:
                    await news.wait()

    def hang_up(self) -> None:
        """End all streams, and let no new one begin."""
        self._stopping = True
        self._begun.set()
        self._news.set()
        self._wake_subscribers()

    async def stop(self) -> None:
        """End all streams, and wait until nothing is being read."""
        self.hang_up()
        if self._reader is not None:  # not cancelled: SQLite's driver would leave a thread behind
            await asyncio.wait([self._reader])

    # --- within ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _joined(self) -> Iterator[asyncio.Event]:
        self._check()
        news = asyncio.Event()
        self._subscribers.add(news)
        if self._reader is None or self._reader.done():
            self._begin()
        try:
            yield news
        finally:
            self._subscribers.discard(news)
            self._news.set()  # so that the reader ends if it was the last

    def _begin(self) -> None:
        self._error, self._horizon, self._workers = None, None, None
        self._begun.clear()
        self._kept.clear()
        self._bytes = 0
        self._reader = asyncio.create_task(self._read())

    async def _present(self) -> int:
        """Return the number up to which the reader has read."""
        await self._begun.wait()
        self._check()
        return self._horizon or 0

    def _check(self) -> None:
        if self._stopping:
            raise InfrastructureError("scheduler_stopping", "the scheduler is stopping")
        if self._error is not None and self._subscribers:
            raise self._error

    def _after(self, place: int) -> list[_Message] | None:
        """Return the messages after this one; None if they are no longer kept."""
        if place < self._newest - len(self._kept):
            return None
        missing = self._newest - place
        return [self._kept[index] for index in range(len(self._kept) - missing, len(self._kept))]

    async def _read(self) -> None:
        """Read new changes as long as there are subscribers."""
        clock = asyncio.get_running_loop().time
        answered = clock()
        while self._subscribers and not self._stopping:
            self._news.clear()
            try:
                pause = await self._look()
                answered = clock()
            except KgymError as error:
                if clock() > answered + PATIENCE_SECONDS:
                    self._error = error
                    self._begun.set()
                    self._wake_subscribers()
                    return
                pause = RETRY_SECONDS
            if pause is not None:
                await asyncio.sleep(pause)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), POLL_SECONDS)
            if self._subscribers and not self._stopping:
                await asyncio.sleep(GATHER_SECONDS)

    async def _look(self) -> float | None:
        """Read new changes; return the seconds until the next look if it is urgent."""
        end = await self._log.end()
        if end.settled is None:
            return UNSETTLED_SECONDS
        if self._horizon is None:
            self._horizon = end.settled
            self._begun.set()
        marked = self._horizon
        while self._horizon < end.settled:
            rows, self._horizon = await self._log.between(self._horizon, end.settled)
            for row in rows:
                self._keep(marked := row.id, _text(row))
            self._wake_subscribers()
        if self._horizon - marked >= MARK:
            self._keep(self._horizon, b"id: %d\n\n" % self._horizon)
        await self._look_at_workers()
        self._wake_subscribers()
        return None if end.is_settled else UNSETTLED_SECONDS

    async def _look_at_workers(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._workers_at + WORKER_SECONDS and self._workers is not None:
            return
        states = await self._store.worker_states()
        self._workers_at = now
        before, self._workers = self._workers, states
        if before is None:
            return
        for name in sorted({*before, *states}):
            state = states.get(name, "gone")
            if before.get(name) != state:
                data = WorkerChange(state=state).model_dump()
                change = _change("worker", self._horizon or 0, worker=name, data=data)
                self._keep(None, f"event: worker\ndata: {change.model_dump_json()}\n\n".encode())

    def _keep(self, cursor: int | None, text: bytes) -> None:
        self._newest += 1
        self._kept.append(_Message(self._newest, cursor, text))
        self._bytes += len(text)
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.popleft().text)

    def _wake_subscribers(self) -> None:
        for news in self._subscribers:
            news.set()


def _known(after: int, newest: int) -> bool:
    """Return whether the cursor is of this feed and not too old."""
    return newest - OLDEST <= after <= newest


def _change(kind: str, cursor: int, **fields: Any) -> Change:
    given = {"data": {}, **fields, "kind": kind, "cursor": str(cursor), "at": datetime.now(UTC)}
    return Change.model_validate(given)


def _event(kind: str, cursor: int) -> bytes:
    change = _change(kind, cursor)
    return f"id: {cursor}\nevent: {kind}\ndata: {change.model_dump_json()}\n\n".encode()


def _text(row: Any) -> bytes:
    """Return a row as the text of its `Change`."""
    # Written by hand: the data are JSON already, and parsing them is most of the reader's work.
    step = "null" if row.step is None else row.step
    change = (
        f'{{"kind":"{row.kind}","cursor":"{row.id}","at":"{row.at.isoformat()}",'
        f'"job":{row.job_id},"step":{step},"worker":null,"data":{row.data}}}'
    )
    return f"id: {row.id}\nevent: {row.kind}\ndata: {change}\n\n".encode()
