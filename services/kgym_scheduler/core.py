"""The scheduler: store, bus and storage made into one service.

A message is published after the commit that makes it true, and the sweeper
sends again what got lost between the two (design, invariant 1).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from kgym.bus import Bus
from kgym.errors import InfrastructureError, KgymError
from kgym.jobs import (
    Artifact,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    Progress,
    QueueView,
    WorkerView,
)
from kgym.states import State
from kgym.storage import Storage
from kgym.worker import Assignment, Ending
from kgym_scheduler.change import Changed
from kgym_scheduler.refusals import NotFound
from kgym_scheduler.store import BATCH, Store

SWEEP_SECONDS = 1.0
POLL_SECONDS = 1.0
"""How long a watcher waits for news of another process before it looks for itself."""

_log = structlog.get_logger()


class Scheduler:
    """Takes jobs, hands their steps to workers (it is their `Dispatch`), and tells of both.

    `alone` says that this is the only scheduler on the database and that no
    worker outlives it, as on the embedded platform: at the start it takes
    back at once what an earlier process was running when it died.
    """

    def __init__(self, store: Store, bus: Bus, storage: Storage, *, alone: bool = False) -> None:
        self.storage = storage
        self._store = store
        self._bus = bus
        self._alone = alone
        self._sweeper: asyncio.Task[None] | None = None
        self._watchers: dict[int, set[asyncio.Event]] = {}
        self._seen: dict[str, datetime] = {}
        self._stopping = False

    async def start(self) -> None:
        """Begin to sweep."""
        if self._alone:
            await self._store.orphan()
        self._sweeper = asyncio.create_task(self._sweep())

    def hang_up(self) -> None:
        """End all event streams, and let no new one begin."""
        self._stopping = True
        for watchers in self._watchers.values():
            for news in watchers:
                news.set()

    async def stop(self) -> None:
        """End event streams, stop sweeping, close the store."""
        self.hang_up()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.stop()

    # --- for users ------------------------------------------------------------------------

    async def submit(self, request: JobRequest, key: str | None = None) -> tuple[JobView, bool]:
        """Add a job; return it, and whether it is new (see `Store.submit`)."""
        job, changed = await self._store.submit(request, key)
        await self._announce(changed)
        return job, changed is not None

    async def job(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if there is none."""
        return await self._store.get(job_id)

    async def state(self, job_id: int) -> State:
        """Return the job's state; raise NotFound if there is no such job."""
        return await self._store.state(job_id)

    async def jobs(self, wanted: JobFilter) -> JobPage:
        """Return one page of the jobs that are wanted, newest first."""
        return await self._store.page(wanted)

    async def abort(self, job_id: int) -> JobView:
        """End the job now, wherever its step runs (see `Store.abort`)."""
        changed = await self._store.abort(job_id)
        await self._announce(changed)
        await self._stop(changed)
        return await self._store.get(job_id)

    async def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again from a step on (see `Store.restart`)."""
        await self._announce(await self._store.restart(job_id, from_step))
        return await self._store.get(job_id)

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags."""
        return await self._store.tag(job_id, tags)

    async def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        Raises InfrastructureError `scheduler_stopping` if the scheduler stops before.
        """
        with self._watch(job_id) as news:
            while True:
                if self._stopping:
                    raise InfrastructureError("scheduler_stopping", "the scheduler is stopping")
                news.clear()
                final, events = await self._store.events(job_id, last)
                for event in events:
                    yield event
                    last = event.id
                if events:
                    continue
                if final:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), POLL_SECONDS)

    async def log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[str]:
        """Yield what the job's steps have logged so far."""
        last = 0
        while events := await self._store.log(job_id, last, step, attempt):
            for event in events:
                yield event.data["text"]
            last = events[-1].id

    async def artifacts(self, job_id: int, number: int) -> list[Artifact]:
        """Return the artifacts of a step; raise NotFound if there is no such step."""
        return await self._store.artifacts(job_id, number)

    async def artifact(self, job_id: int, number: int, name: str) -> Artifact:
        """Return one artifact of a step; raise NotFound if it left none of this name."""
        for artifact in await self.artifacts(job_id, number):
            if artifact.name == name:
                return artifact
        raise NotFound("artifact_not_found", f"step {number} of job {job_id} left no {name!r}")

    async def workers(self) -> list[WorkerView]:
        """Return the workers that are known, by name."""
        known: dict[str, WorkerView] = {
            name: WorkerView(id=name, seen_at=seen, running=[]) for name, seen in self._seen.items()
        }
        for name, (seen, running) in (await self._store.running()).items():
            before = self._seen.get(name, seen)
            known[name] = WorkerView(id=name, seen_at=max(seen, before), running=running)
        return [known[name] for name in sorted(known)]

    async def queues(self) -> list[QueueView]:
        """Return how many steps of each kind wait and run."""
        return await self._store.queues()

    async def ready(self) -> None:
        """Raise InfrastructureError if a part that the scheduler needs does not answer."""
        await self._store.ping()

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, step_id: int, worker: str) -> Assignment | None:
        """Lease the step to this worker; None if it is not queued any more."""
        assignment, changed = await self._store.claim(step_id, worker)
        self._seen[worker] = datetime.now(UTC)
        await self._announce(changed)
        return assignment

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and pass on what is new; False if the lease is stale."""
        return await self._announce(await self._store.report(lease, log, progress))

    async def finish(self, lease: UUID, ending: Ending) -> bool:
        """End the attempt; False if the lease is stale."""
        return await self._announce(await self._store.finish(lease, ending))

    async def release(self, lease: UUID) -> bool:
        """Give the step back unfinished; False if the lease is stale."""
        return await self._announce(await self._store.release(lease))

    # --- within ---------------------------------------------------------------------------

    async def _announce(self, changed: Changed | None) -> bool:
        """Tell workers and watchers of what was committed; return whether there was anything."""
        if changed is None:
            return False
        for news in self._watchers.get(changed.job_id, ()):
            news.set()
        for message in changed.queued:
            await self._bus.publish(message)
        return True

    @contextlib.contextmanager
    def _watch(self, job_id: int) -> Iterator[asyncio.Event]:
        news = asyncio.Event()
        watchers = self._watchers.setdefault(job_id, set())
        watchers.add(news)
        try:
            yield news
        finally:
            watchers.discard(news)
            if not watchers:
                self._watchers.pop(job_id, None)

    async def _sweep(self) -> None:
        # Workers that could not reach the scheduler while it was away get a lease's time to do so.
        expire_from = asyncio.get_running_loop().time()
        if not self._alone:
            expire_from += self._store.lease.total_seconds()
        while True:
            try:
                full = await self._publish_due() == BATCH
                if asyncio.get_running_loop().time() >= expire_from:
                    await self._expire()
            except (KgymError, OSError) as error:
                _log.warning("sweep failed, trying again", error=str(error))
                full = False
            if not full:
                await asyncio.sleep(SWEEP_SECONDS)

    async def _publish_due(self) -> int:
        messages = await self._store.due()
        for message in messages:
            await self._bus.publish(message)
        return len(messages)

    async def _expire(self) -> None:
        for changed in await self._store.expire():
            await self._announce(changed)
            await self._stop(changed)

    async def _stop(self, changed: Changed) -> None:
        for lease in changed.stopped:
            await self._bus.signal(lease)
