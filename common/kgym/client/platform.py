"""What is asked of the scheduler about the whole platform."""

from collections.abc import AsyncIterator, Iterator

from kgym.api.bugs import BugFilter, BugPage
from kgym.api.changes import Change, ChangeFilter, ChangePage
from kgym.api.jobs import QueueView, WorkerView
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.storage import StorageView
from kgym.api.suitecache import DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.client import endpoints
from kgym.client.connection import AsyncConnection, Connection
from kgym.client.following import ChangeFeed
from kgym.client.protocol import RECONNECTS


class PlatformCalls(Connection):
    """Workers, queues, storage and changes, for `Client`."""

    def workers(self) -> list[WorkerView]:
        """Return the workers: those alive, and those lost within a day."""
        return self._do(endpoints.workers())

    def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs, take nothing more, and end; `admin` only."""
        return self._do(endpoints.drain(worker))

    def statistics(self, wanted: StatisticsFilter) -> Statistics:
        """Return how many attempts ended in each minute, hour or day: how, and why they failed."""
        return self._do(endpoints.statistics(wanted))

    def bugs(self, wanted: BugFilter | None = None) -> BugPage:
        """Return a page of the bugs that jobs name, those active last first.

        Counts are a few seconds old. `next` is the `cursor` of the page that follows.
        """
        return self._do(endpoints.bugs(wanted or BugFilter()))

    def suitecache(self, wanted: EntryFilter | None = None) -> EntryPage:
        """Return a page of the compiled kernels that are kept, those used last first.

        `next` is the `cursor` of the page that follows.
        """
        return self._do(endpoints.suitecache(wanted or EntryFilter()))

    def suitecache_entry(self, name: str) -> EntryView:
        """Return a compiled kernel that is kept: where, what for, and how it was made."""
        return self._do(endpoints.suitecache_entry(name))

    def drop_entry(self, name: str) -> DroppedEntry:
        """Remove a compiled kernel from storage and workers' disks; `admin` only."""
        return self._do(endpoints.drop_entry(name))

    def queues(self) -> list[QueueView]:
        """Return, for each kind of step, how many wait and run, and how long the oldest waits."""
        return self._do(endpoints.queues())

    def storage(self) -> StorageView:
        """Return what artifacts, caches and database take, by kind, age and job, in bytes.

        It is at most half a minute old.
        """
        return self._do(endpoints.storage())

    def changes(self, after: str | None = None, reconnects: int = RECONNECTS) -> Iterator[Change]:
        """Yield what changes in any job or worker, as it happens, without an end.

        The first is `begin`, or `reset` where the cursor is too old: then read again what you
        show. A lost connection is opened again: no change of a job is lost or comes twice, and
        `begin` comes again, after which `workers` tells how the workers are.

        Args:
            after: The `cursor` of what you know; without it, only what is new.
            reconnects: How often in a row a lost connection is opened again; 0: you do that.

        Raises:
            Refused: You follow too much (`too_many_streams`).
            InfrastructureError: The scheduler could not be reached for about 13 seconds, or less
                with fewer `reconnects` (`scheduler_unreachable`).
        """
        yield from self._follow(ChangeFeed(after, reconnects))

    def change_page(self, wanted: ChangeFilter) -> ChangePage:
        """Return the next changes of jobs after a cursor, at most 1,000, without waiting."""
        return self._do(endpoints.changes(wanted))


class AsyncPlatformCalls(AsyncConnection):
    """Workers, queues, storage and changes, for `AsyncClient`."""

    async def workers(self) -> list[WorkerView]:
        """Return the workers: those alive, and those lost within a day."""
        return await self._do(endpoints.workers())

    async def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs, take nothing more, and end; `admin` only."""
        return await self._do(endpoints.drain(worker))

    async def statistics(self, wanted: StatisticsFilter) -> Statistics:
        """Return how many attempts ended in each minute, hour or day: how, and why they failed."""
        return await self._do(endpoints.statistics(wanted))

    async def bugs(self, wanted: BugFilter | None = None) -> BugPage:
        """Return a page of the bugs that jobs name, those active last first."""
        return await self._do(endpoints.bugs(wanted or BugFilter()))

    async def suitecache(self, wanted: EntryFilter | None = None) -> EntryPage:
        """Return a page of the compiled kernels that are kept, those used last first."""
        return await self._do(endpoints.suitecache(wanted or EntryFilter()))

    async def suitecache_entry(self, name: str) -> EntryView:
        """Return a compiled kernel that is kept: where, what for, and how it was made."""
        return await self._do(endpoints.suitecache_entry(name))

    async def drop_entry(self, name: str) -> DroppedEntry:
        """Remove a compiled kernel from storage and workers' disks; `admin` only."""
        return await self._do(endpoints.drop_entry(name))

    async def queues(self) -> list[QueueView]:
        """Return, for each kind of step, how many wait and run, and how long the oldest waits."""
        return await self._do(endpoints.queues())

    async def storage(self) -> StorageView:
        """Return what artifacts, caches and database take, by kind, age and job, in bytes."""
        return await self._do(endpoints.storage())

    def changes(
        self, after: str | None = None, reconnects: int = RECONNECTS
    ) -> AsyncIterator[Change]:
        """Yield what changes in any job or worker, as it happens, without an end."""
        return self._follow(ChangeFeed(after, reconnects))

    async def change_page(self, wanted: ChangeFilter) -> ChangePage:
        """Return the next changes of jobs after a cursor, at most 1,000, without waiting."""
        return await self._do(endpoints.changes(wanted))
