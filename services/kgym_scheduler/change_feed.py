"""The feed of all jobs' changes: one reader of the database for all who are subscribed.

It looks when this scheduler has committed something, and twice a second for what others have; as
each look finds all that has happened since, a busy platform costs ten looks a second. Without a
subscriber it does nothing, and no transaction does anything for it: PostgreSQL's NOTIFY would be
told of each change at once, but makes transactions wait for each other.
"""

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

# Numbers of events behind the newest, beyond which a cursor is too old.
OLDEST = 1_000_000
# Of the newest changes that are held for subscribers; who lags further reads by itself.
KEPT_BYTES = 4 << 20
# How long news gather before they are read.
GATHER_SECONDS = 0.1
# How often to look for what other schedulers have committed.
POLL_SECONDS = 0.5
UNSETTLED_SECONDS = 0.01
# How often to look at the workers.
WORKER_SECONDS = 1.0
# Numbers that pass without a change until subscribers are told that they have passed.
MARK = 1000
RETRY_SECONDS = 0.5
# How long streams outlast a database that does not answer.
PATIENCE_SECONDS = 30.0
# Reads that one page takes at most.
WINDOWS = 10


class _Message(NamedTuple):
    number: int
    """In this process, from 1."""
    cursor: int | None
    """None: it does not move the cursor."""
    text: bytes


class ChangeFeed:
    """The changes of all jobs in this store, and of its workers."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._log = store.change_log
        # Each is set when there is something to tell.
        self._subscribers: set[asyncio.Event] = set()
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        # Up to which number the changes are read; None while there is no reader.
        self._horizon: int | None = None
        self._begun = asyncio.Event()
        self._kept = deque[_Message]()
        self._bytes = self._told = 0
        self._workers: Mapping[str, WorkerState] | None = None
        self._workers_at = 0.0
        self._error: KgymError | None = None
        self._stopping = False

    def wake(self) -> None:
        """Let the reader look for news."""
        if self._subscribers:
            self._news.set()

    async def page(self, after: int | None, limit: int) -> ChangePage:
        """Return the next changes; none, and where the feed ends, without a cursor."""
        end = await self._log.settled_end()
        settled = end.settled or 0
        if after is None or not _known(after, end.newest):
            reset = after is not None
            return ChangePage(changes=[], next=str(settled), more=False, reset=reset)
        found: list[Change] = []
        for _ in range(WINDOWS):
            if after >= settled or len(found) == limit:
                break
            rows, after = await self._log.between(after, settled, limit - len(found))
            found += map(views.change, rows)
        return ChangePage(changes=found, next=str(after), more=after < settled, reset=False)

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """Yield the changes as server-sent events: after this cursor, or from now on.

        Raises InfrastructureError `scheduler_stopping`, or what is the matter with the database.
        """
        with self._joined() as news:
            newest = (await self._log.end()).newest
            known = after is not None and _known(after, newest)
            last = after if known and after is not None else await self._present()
            yield _said("begin" if known or after is None else "reset", last)
            place = -1  # what is kept may begin later than the cursor: so it is read first
            while True:
                self._check()
                news.clear()
                kept = self._after(place)
                if kept is None:
                    place, horizon = self._told, await self._present()
                    if horizon - last > OLDEST:
                        last = horizon
                        yield _said("reset", last)
                    while last < horizon:
                        rows, last = await self._log.between(last, horizon)
                        if rows:
                            yield b"".join(map(_text, rows))
                elif kept:
                    place = kept[-1].number
                    new = [one for one in kept if one.cursor is None or one.cursor > last]
                    last = max([last, *(one.cursor for one in new if one.cursor is not None)])
                    if new:
                        yield b"".join(one.text for one in new)
                else:
                    await news.wait()

    def hang_up(self) -> None:
        """End all streams, and let no new one begin."""
        self._stopping = True
        self._begun.set()
        self._news.set()
        self._tell()

    async def stop(self) -> None:
        """End all streams, and wait until nothing is being read."""
        self.hang_up()
        if self._reader is not None:  # it ends by itself: SQLite's driver cannot be broken off
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
        """Return up to where the reader has read."""
        await self._begun.wait()
        self._check()
        return self._horizon or 0

    def _check(self) -> None:
        if self._stopping:
            raise InfrastructureError("scheduler_stopping", "the scheduler is stopping")
        if self._error is not None and self._subscribers:
            raise self._error

    def _after(self, place: int) -> list[_Message] | None:
        """Return the messages after this one; None where they are no longer kept."""
        if place < self._told - len(self._kept):
            return None
        missing = self._told - place
        return [self._kept[index] for index in range(len(self._kept) - missing, len(self._kept))]

    async def _read(self) -> None:
        """Read what is new, as long as there are subscribers."""
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
                    self._tell()
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
        """Read what is new; return the seconds until the next look, where that is urgent."""
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
            self._tell()
        if self._horizon - marked >= MARK:
            self._keep(self._horizon, b"id: %d\n\n" % self._horizon)
        await self._look_at_workers()
        self._tell()
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
                told = _change("worker", self._horizon or 0, worker=name, data=data)
                self._keep(None, f"event: worker\ndata: {told.model_dump_json()}\n\n".encode())

    def _keep(self, cursor: int | None, text: bytes) -> None:
        self._told += 1
        self._kept.append(_Message(self._told, cursor, text))
        self._bytes += len(text)
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.popleft().text)

    def _tell(self) -> None:
        for news in self._subscribers:
            news.set()


def _known(after: int, newest: int) -> bool:
    """Return whether the feed can go on from this cursor: one beyond the end is not of it."""
    return newest - OLDEST <= after <= newest


def _change(kind: str, cursor: int, **fields: Any) -> Change:
    given = {"data": {}, **fields, "kind": kind, "cursor": str(cursor), "at": datetime.now(UTC)}
    return Change.model_validate(given)


def _said(kind: str, cursor: int) -> bytes:
    told = _change(kind, cursor)
    return f"id: {cursor}\nevent: {kind}\ndata: {told.model_dump_json()}\n\n".encode()


def _text(row: Any) -> bytes:
    """Return a row as the text of its `Change`: its data are JSON already, and need no reading."""
    step = "null" if row.step is None else row.step
    change = (
        f'{{"kind":"{row.kind}","cursor":"{row.id}","at":"{row.at.isoformat()}",'
        f'"job":{row.job_id},"step":{step},"worker":null,"data":{row.data}}}'
    )
    return f"id: {row.id}\nevent: {row.kind}\ndata: {change}\n\n".encode()
