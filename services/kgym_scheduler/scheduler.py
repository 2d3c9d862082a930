"""The scheduler: store, bus and storage made into one service.

Workers are notified after the commit; the sweeper notifies them again, in case that got lost
(ARCHITECTURE.md, "What must hold").
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from kgym.api.bulk import Aborted, AbortRequest, Restarted, RestartRequest, Submitted
from kgym.api.capabilities import Capabilities
from kgym.api.groups import GroupFilter, GroupPage, GroupResultPage, GroupView
from kgym.api.jobs import (
    UNATTENDED,
    Artifact,
    JobConditions,
    JobCount,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    Progress,
    QueueView,
    WorkerView,
)
from kgym.api.states import State
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.steps import StepKind, StepSpec
from kgym.api.suitecache import DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.api.worker_calls import AttemptEnding, Claim, Claimed
from kgym.errors import KgymError, NotFound
from kgym.transport.artifact_storage import Storage
from kgym.transport.bus import Bus
from kgym_scheduler.change_feed import ChangeFeed
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import LOCAL
from kgym_scheduler.dead_workers import DeadWorkers
from kgym_scheduler.job_followers import Followers, StreamedEvent
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.notifier import Notifier
from kgym_scheduler.queue import known_workers
from kgym_scheduler.queue.attended_jobs import Attendance
from kgym_scheduler.queue.job_changes import Changed, EndedAttempt
from kgym_scheduler.readiness import Readiness, enough_room
from kgym_scheduler.suitecache_entries import SuiteCacheEntries

SWEEP_SECONDS = 1.0
# How long nothing has to happen here for sweeps to become rare; no pause of a step is longer.
QUIET_SECONDS = 5.0
QUIET_SWEEP_SECONDS = 5.0
# How often workers are notified of steps that wait, whatever was sent before.
NOTIFY_SECONDS = 10.0
STOP_SECONDS = 5.0
# How long it counts that a worker was found to have a compiler: not every job asks again.
COMPILER_SECONDS = 10.0
MOST_COMPILERS = 1000
# How long it counts what the only host was found to have.
HOST_SECONDS = 2.0

_log = structlog.get_logger()


class Scheduler:
    """Takes jobs, hands their steps to workers (it is their `WorkerCalls`), and tells of both.

    `alone` says that this is the only scheduler on the database and that no
    worker outlives it, as on the embedded platform: at the start it takes
    back at once what an earlier process was running when it died. `host` finds
    out what its only host has; without it, the workers tell.
    """

    def __init__(
        self,
        store: JobStore,
        bus: Bus,
        storage: Storage,
        *,
        alone: bool = False,
        host: Callable[[], Awaitable[Capabilities]] | None = None,
    ) -> None:
        self.storage = storage
        # Called with each attempt that this scheduler has ended.
        self.observers: list[Callable[[EndedAttempt], None]] = []
        self._store = store
        self._notifier = Notifier(bus)
        nobody = UUID(int=0)  # a signal that stops nothing goes to the broker and back
        self.counts = store.counts
        self._readiness = Readiness(
            {
                "database": store.ping,
                "bus": partial(bus.signal, nobody),
                "disk": partial(enough_room, storage, store.database),
            }
        )
        self._attendance = store.attendance
        self._alone = alone
        self._host = host
        self._host_has: Capabilities | None = None
        self._looked_at = -HOST_SECONDS
        # Which compilers a worker was found to have, by kind of step; until when that counts.
        self._compilers: dict[tuple[str, ...], float] = {}
        self._helpers: list[asyncio.Task[None]] = []
        # Hears of the connections of workers.
        self.dead_workers = DeadWorkers(store, self._announce)
        self._tasks: set[asyncio.Task[None]] = set()
        self._followers = Followers(store)
        self._entries = SuiteCacheEntries(store, storage)
        # The feed of all jobs' changes.
        self.changes = ChangeFeed(store)
        self._stopping = asyncio.Event()
        # Set when something happens to a job, or the scheduler stops.
        self._moved = asyncio.Event()
        self._moved_at = 0.0

    @property
    def database(self) -> Database:
        """The database that holds all of the scheduler's state."""
        return self._store.database

    async def start(self) -> None:
        """Begin to sweep, and to notify."""
        if self._alone:
            await self._store.orphan()
            while await self._store.expire():
                pass
        if self._attendance is not None:
            self._attendance.begin(await self._store.newest_job())
        self._moved_at = asyncio.get_running_loop().time()
        self._sweeping = asyncio.create_task(self._sweep())
        helpers = (self._notifier.run(), self._entries.dropped.watch())
        self._helpers = [self._sweeping, *map(asyncio.create_task, helpers)]

    def hang_up(self) -> None:
        """End all event streams, and let no new one begin."""
        self._stopping.set()
        self._moved.set()
        self._followers.hang_up()
        self.changes.hang_up()
        self.dead_workers.hang_up()

    async def stop(self) -> None:
        """End event streams, stop sweeping, close the store."""
        self.hang_up()
        # A sweep ends by itself: SQLite's driver leaves a thread behind a cancelled statement.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._sweeping), STOP_SECONDS)
        helpers = [*self._helpers, *self._tasks]
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        await self.dead_workers.stop()
        await self._followers.stop()
        await self.changes.stop()
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.stop()

    # --- for users ------------------------------------------------------------------------

    async def submit(
        self, request: JobRequest, key: str | None = None, submitter: str = LOCAL
    ) -> tuple[JobView, bool]:
        """Add a job; return it, and whether it is new (see `JobStore.submit`).

        Raises UserError `no_syzkaller` for a program that no worker can run, `no_compiler` for a
        kernel that none can build.
        """
        await self._check_needs([request])
        job, changed = await self._store.submit(request, key, submitter)
        self._announce(changed)
        self._ask([job.id])
        return job, changed is not None

    async def submit_all(
        self, requests: Sequence[JobRequest], key: str | None = None, submitter: str = LOCAL
    ) -> Submitted:
        """Add all jobs in one transaction, or none (see `submit`)."""
        await self._check_needs(requests)
        ids, changes = await self._store.submit_all(requests, key, submitter)
        for changed in changes:
            self._announce(changed)
        self._ask(ids)
        return Submitted(jobs=ids, created=len(changes))

    async def abort_all(
        self, wanted: AbortRequest, caller: str = LOCAL, owner: str | None = None
    ) -> Aborted:
        """End many jobs now (see `bulk_jobs.abort`)."""
        done, changes = await self._store.abort_all(wanted, caller, owner)
        for changed in changes:
            self._announce(changed)
        return done

    async def restart_all(
        self, wanted: RestartRequest, caller: str = LOCAL, owner: str | None = None
    ) -> Restarted:
        """Run many finished jobs again (see `bulk_jobs.restart`)."""
        done, changes = await self._store.restart_all(wanted, caller, owner)
        for changed in changes:
            self._announce(changed)
        self._ask(done.restarted)
        return done

    async def count(self, wanted: JobConditions, caller: str = LOCAL) -> JobCount:
        """Return how many jobs are wanted (see `JobStore.count`)."""
        return await self._store.count(wanted, caller)

    async def groups(self, wanted: GroupFilter, caller: str = LOCAL) -> GroupPage:
        """Return one page of the groups that are wanted, newest first."""
        return await self._store.groups(wanted, caller)

    async def group(self, submitter: str, name: str) -> GroupView:
        """Return the group; raise NotFound if there is none."""
        return await self._store.group(submitter, name)

    async def group_results(
        self, submitter: str, name: str, after: int = 0, limit: int = 200
    ) -> GroupResultPage:
        """Return what the jobs of a group came to, the next after number `after`."""
        return await self._store.group_results(submitter, name, after, limit)

    async def abort_group(self, submitter: str, name: str, owner: str | None = None) -> Aborted:
        """End what is unfinished of a group now, the first thousand jobs."""
        done, changes = await self._store.abort_group(submitter, name, owner)
        for changed in changes:
            self._announce(changed)
        return done

    async def job(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if there is none."""
        return self._seen(await self._store.get(job_id))

    async def state(self, job_id: int) -> State:
        """Return the job's state; raise NotFound if there is no such job."""
        return await self._store.state(job_id)

    async def check(self, job_id: int) -> None:
        """Raise NotFound if there is no such job (see `Followers.check`)."""
        await self._followers.check(job_id)

    async def jobs(self, wanted: JobFilter, caller: str = LOCAL) -> JobPage:
        """Return one page of the jobs that are wanted, newest first."""
        page = await self._store.page(wanted, caller)
        return JobPage(jobs=list(map(self._seen, page.jobs)), next=page.next)

    async def abort(self, job_id: int, owner: str | None = None) -> JobView:
        """End the job now, wherever its step runs (see `JobStore.abort`)."""
        self._announce(await self._store.abort(job_id, owner))
        return await self._store.get(job_id)

    async def restart(
        self, job_id: int, from_step: int | None = None, owner: str | None = None
    ) -> JobView:
        """Run a finished job again from a step on (see `JobStore.restart`)."""
        self._announce(await self._store.restart(job_id, from_step, owner))
        self._ask([job_id])
        return await self._store.get(job_id)

    async def tag(self, job_id: int, tags: Sequence[str], owner: str | None = None) -> JobView:
        """Replace the job's tags (see `JobStore.tag`)."""
        job = await self._store.tag(job_id, tags, owner)
        self.changes.wake()
        return job

    async def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        Raises InfrastructureError `scheduler_stopping` if the scheduler stops before.
        """
        async for events in self.follow(job_id, last):
            for streamed in events:
                yield streamed.event

    def follow(self, job_id: int, last: int = 0) -> AsyncIterator[list[StreamedEvent]]:
        """Yield what `events` does, as text, too, and all that is new at once."""
        events = self._followers.follow(job_id, last)
        if self._attendance is None:
            return events
        return self._attended(self._attendance, job_id, events)

    async def log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[str]:
        """Yield what the job's steps have logged so far."""
        last = -1
        text, now = "", 0
        while now != last:
            yield text
            last = now
            text, now = await self.log_after(job_id, last, step, attempt)

    async def log_after(
        self, job_id: int, after: int, step: int | None = None, attempt: int | None = None
    ) -> tuple[str, int]:
        """Return a part of what was logged after event `after`, and the number of its last event.

        That is `after` if nothing was.
        """
        events = await self._store.log(job_id, after, step, attempt)
        return "".join(event.data["text"] for event in events), max(
            (event.id for event in events), default=after
        )

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
        """Return the workers, by name: those alive, and those lost within a day."""
        return await self._store.workers()

    async def drain(self, worker_id: str) -> WorkerView:
        """Let a worker take no more; raise NotFound if there is none of this name."""
        return await self._store.drain(worker_id)

    async def queues(self) -> list[QueueView]:
        """Return how many steps of each kind wait and run."""
        return await self._store.queues()

    async def statistics(self, wanted: StatisticsFilter) -> Statistics:
        """Return how many attempts ended in each minute, hour or day, and how."""
        return await self._store.statistics(wanted)

    async def suitecache(self, wanted: EntryFilter) -> EntryPage:
        """Return one page of SuiteCache's entries, those used last first."""
        return await self._entries.page(wanted)

    async def suitecache_entry(self, name: str) -> EntryView:
        """Return an entry of SuiteCache; raise NotFound if there is none."""
        return await self._entries.one(name)

    async def drop_entry(self, name: str) -> DroppedEntry:
        """Remove an entry of SuiteCache (see `SuiteCacheEntries.drop`)."""
        return await self._entries.drop(name)

    async def ready(self) -> None:
        """Raise InfrastructureError `not_ready` if a part that the scheduler needs is missing."""
        await self._readiness.check()

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, claim: Claim) -> Claimed:
        """Lease queued steps to the worker: the fairest ones that it can do."""
        claimed, changes = await self._store.claim(claim)
        if self._entries.dropped.names:
            claimed = claimed.model_copy(update={"dropped": self._entries.dropped.names})
        for changed in changes:
            self._announce(changed)
        if claim.woken:  # there may be others that no notification has woken
            self._notifier.notify(claimed.more)
        return claimed

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and pass on what is new; False if the lease is stale."""
        return self._announce(await self._store.report(lease, log, progress))

    async def finish(self, lease: UUID, ending: AttemptEnding) -> bool:
        """End the attempt; False if the lease is stale."""
        return self._announce(await self._store.finish(lease, ending))

    async def release(self, lease: UUID) -> bool:
        """Give the step back unfinished; False if the lease is stale."""
        return self._announce(await self._store.release(lease))

    async def hold(self, lease: UUID, name: str) -> bool:
        """Let the attempt hold a name until it ends (see `JobStore.hold`)."""
        return await self._store.hold(lease, name)

    async def ended(self, lease: UUID) -> bool:
        """Tell whether the attempt of a lease has ended (see `JobStore.ended`)."""
        return await self._store.ended(lease)

    async def leave(self, worker: str) -> None:
        """Forget a worker that has ended."""
        await self._store.leave(worker)

    async def stay(self, worker: str) -> None:
        """Wait until cancelled: a worker in this process does not end without it."""
        await asyncio.Event().wait()

    # --- within ---------------------------------------------------------------------------

    async def _attended(
        self, attendance: Attendance, job_id: int, events: AsyncIterator[list[StreamedEvent]]
    ) -> AsyncIterator[list[StreamedEvent]]:
        """Yield the events; meanwhile the job is wanted, and others make room for it."""
        try:
            with attendance.followed(job_id):
                self._later(self._make_room(attendance))
                async for new in events:
                    yield new
        finally:
            self._later(self._make_room(attendance))

    async def _make_room(self, attendance: Attendance) -> None:
        """Let the workers give back what nobody waits for any more, and ask for what may begin."""
        with contextlib.suppress(KgymError):  # they ask by themselves
            self._notifier.stop(await self._store.leases(attendance.in_the_way))
            self._notifier.notify(await self._store.waiting())

    def _ask(self, job_ids: Iterable[int]) -> None:
        if self._attendance is not None:
            self._attendance.ask(job_ids)

    def _seen(self, job: JobView) -> JobView:
        """Return the job as it is shown: on a platform of commands, with why it does not begin."""
        if self._attendance is None or job.id in self._attendance.wanted:
            return job
        steps = [
            step.model_copy(update={"waiting": UNATTENDED}) if step.state is State.QUEUED else step
            for step in job.steps
        ]
        return job.model_copy(update={"steps": steps})

    def _later(self, work: Coroutine[None, None, None]) -> None:
        """Do it beside, unless the scheduler stops."""
        if self._stopping.is_set():
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check_needs(self, requests: Sequence[JobRequest]) -> None:
        """Refuse what no worker will ever be able to do: it would wait for ever."""
        for request in requests:
            if any(spec.needs().syzkaller for spec in request.steps):
                has = await self._able(StepKind.REPRODUCE)
                known_workers.check_syzkaller(request.steps, has)
            if any(spec.needs().dump for spec in request.steps):
                has = await self._able(StepKind.REPRODUCE)
                known_workers.check_dumps(request.steps, has)
            for number, spec in enumerate(request.steps):
                await self._check_compiler(number, spec)

    async def _check_compiler(self, number: int, spec: StepSpec) -> None:
        needs, now = spec.needs(), time.monotonic()
        if needs.compiler is None:
            return
        wanted = (spec.kind, needs.compiler, *needs.compilers)
        if now < self._compilers.get(wanted, 0.0):
            return
        if known_workers.check_compiler(number, spec, await self._able(spec.kind)):
            if len(self._compilers) >= MOST_COMPILERS:
                self._compilers.clear()
            self._compilers[wanted] = now + COMPILER_SECONDS

    async def _able(self, kind: StepKind) -> list[Capabilities | None]:
        """Return what the live workers have that do steps of a kind."""
        if self._host is not None:
            if time.monotonic() >= self._looked_at + HOST_SECONDS:
                self._host_has, self._looked_at = await self._host(), time.monotonic()
            return [self._host_has]
        return [
            one.capabilities
            for one in await self.workers()
            if one.state == "live" and kind in one.kinds
        ]

    def _announce(self, changed: Changed | None) -> bool:
        """Tell workers and watchers of what was committed; return whether there was anything."""
        if changed is None:
            return False
        self._moved_at = asyncio.get_running_loop().time()
        self._moved.set()
        self._followers.wake([changed.job_id])
        self.changes.wake()
        self._notifier.notify(changed.queued)
        gone = [ended for ended in changed.ended if ended.outcome in {"aborted", "expired"}]
        self._notifier.stop(ended.lease for ended in gone)
        for observe in self.observers:
            for ended in changed.ended:
                observe(ended)
        return True

    async def _sweep(self) -> None:
        # Workers that could not reach the scheduler, or it the database, get a lease's time.
        clock = asyncio.get_running_loop().time
        grace = 0 if self._alone else self._store.lease.total_seconds()
        expire_from, notify_from = clock() + grace, clock()
        while not self._stopping.is_set():
            try:
                retried, expired = await self._store.look()
                self._notifier.notify(retried)
                due = clock() >= notify_from
                if due:
                    await self._store.read_clock()
                    self._notifier.notify(await self._store.waiting())
                    await self._store.forget()
                    notify_from = clock() + NOTIFY_SECONDS
                if expired and clock() >= expire_from:
                    for changed in await self._store.expire():
                        self._announce(changed)
            except (KgymError, OSError) as error:
                _log.warning("sweep failed, trying again", error=str(error))
                expire_from = clock() + self._store.lease.total_seconds()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next sweep: longer where nothing has happened for a while."""
        quiet = asyncio.get_running_loop().time() - self._moved_at
        until = asyncio.timeout(SWEEP_SECONDS if quiet < QUIET_SECONDS else QUIET_SWEEP_SECONDS)
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with until:
                if quiet < QUIET_SECONDS:
                    await self._stopping.wait()
                else:
                    await self._moved.wait()
