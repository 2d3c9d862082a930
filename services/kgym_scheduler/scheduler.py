"""The scheduler: joins the job store to the bus and the storage, and sweeps.

Workers are notified after the commit. The sweep notifies them again, because a notice is only a
hint and may be lost (ARCHITECTURE.md, "What must hold").
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Self
from uuid import UUID

import structlog

from kgym.api.bulk import Aborted, AbortRequest, Restarted, RestartRequest, Submitted
from kgym.api.jobs import UNATTENDED, Artifact, JobFilter, JobPage, JobRequest, JobView, Progress
from kgym.api.states import State
from kgym.api.statistics import StatisticsFilter
from kgym.api.steps import StepKind
from kgym.api.worker_calls import AttemptEnding, Claim, Claimed
from kgym.errors import InfrastructureError, KgymError, NotFound
from kgym.transport.artifact_storage import Storage
from kgym.transport.bus import Bus
from kgym_scheduler.change_feed import ChangeFeed
from kgym_scheduler.database.tables import LOCAL
from kgym_scheduler.dead_workers import DeadWorkers
from kgym_scheduler.job_followers import Followers, StreamedEvent
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.attended_jobs import Attendance
from kgym_scheduler.queue.job_change import Changed, EndedAttempt
from kgym_scheduler.readiness import Readiness, enough_room
from kgym_scheduler.suitecache_entries import SuiteCacheEntries

SWEEP_SECONDS = 1.0
# An idle platform must cost next to nothing: after QUIET_SECONDS without a change, sweeps come
# every QUIET_SWEEP_SECONDS, and the first change wakes them. A failed step is tried again within
# QUIET_SECONDS of its failure (after 2 or 4 s), so its pause is never seen late.
QUIET_SECONDS = 5.0
QUIET_SWEEP_SECONDS = 5.0
# How often workers are notified of all waiting steps: a notice may have been lost.
NOTIFY_SECONDS = 10.0
# How often workers that were lost long ago are forgotten. It is a write, so it is rare.
FORGET_SECONDS = 600.0
# Delay of the first count of all past days, which reads the whole table: a second for 300,000
# attempts. It runs in the background after the start, so that no page has to wait for it.
COUNT_SECONDS = 5.0
STOP_SECONDS = 5.0
# Maximum number of unsent stop signals. Heartbeats tell the workers whose signal is dropped.
MAX_SIGNALS = 10_000

_log = structlog.get_logger()


class _Notifier:
    """Sends notices and stop signals to workers in the background, while `run` runs.

    No request waits for the bus. While it is down, idle workers claim by themselves every second,
    and heartbeats tell workers which of their leases are gone. Unsent notices of one kind are
    sent as one.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kinds: dict[StepKind, None] = {}
        self._leases = deque[UUID](maxlen=MAX_SIGNALS)
        self._has_news = asyncio.Event()

    def notify(self, kinds: Iterable[StepKind]) -> None:
        """Wake a worker of each of these kinds."""
        self._kinds |= dict.fromkeys(kinds)
        if self._kinds:
            self._has_news.set()

    def stop(self, leases: Iterable[UUID]) -> None:
        """Tell the workers that hold these leases to stop."""
        # A signal names the lease, not the step: a late one cannot stop a later attempt.
        self._leases.extend(leases)
        if self._leases:
            self._has_news.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                await self._send()
            except InfrastructureError as error:
                _log.warning("notices not sent", error=str(error))

    async def _send(self) -> None:
        while self._leases:
            await self._bus.signal(self._leases.popleft())
        kinds, self._kinds = self._kinds, {}
        for kind in kinds:
            await self._bus.publish(kind)


class Scheduler:
    """Takes jobs, leases their steps to workers (it is their `WorkerCalls`), and reports on both.

    `store` and `entries` answer what needs neither bus nor followers. `alone`: this is the only
    scheduler on the database, and no worker outlives it, as on the embedded platform. It then
    ends the leases of an earlier process when it starts.
    """

    def __init__(self, store: JobStore, bus: Bus, storage: Storage, *, alone: bool = False) -> None:
        self.store = store
        self.storage = storage
        self.entries = SuiteCacheEntries(store, storage)
        self.followers = Followers(store)
        self.changes = ChangeFeed(store)
        self.dead_workers = DeadWorkers(store, self._announce)
        # Called with each attempt that this scheduler has ended.
        self.observers: list[Callable[[EndedAttempt], None]] = []
        nobody = UUID(int=0)  # the signal stops nothing; it tests the way to the broker and back
        disk = {"disk": partial(enough_room, storage, store.database)}
        bus_signal = partial(bus.signal, nobody)
        self.readiness = Readiness({"database": store.ping, "bus": bus_signal, **disk})
        self._disk = Readiness(disk)
        self._notifier = _Notifier(bus)
        self._attendance = store.attendance
        self._alone = alone
        self._helpers: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        # Set when a job changes, or the scheduler stops.
        self._changed = asyncio.Event()
        self._changed_at = 0.0

    async def start(self) -> None:
        """Start to sweep and to notify."""
        if self._alone:
            # The platform locks its data folder: no worker of an earlier process is left.
            await self.store.orphan()
            while await self.store.expire():
                pass
        if self._attendance is not None:
            self._attendance.begin(await self.store.newest_job())
        self._changed_at = asyncio.get_running_loop().time()
        self._sweeping = asyncio.create_task(self._sweep())
        helpers = (self._notifier.run(), self.entries.dropped.watch(), self._count_days())
        self._helpers = [self._sweeping, *map(asyncio.create_task, helpers)]

    def hang_up(self) -> None:
        """End all event streams, and let no new one begin."""
        self._stopping.set()
        self._changed.set()
        self.followers.hang_up()
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
        await self.followers.stop()
        await self.changes.stop()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- for users ------------------------------------------------------------------------

    async def submit(
        self, request: JobRequest, key: str | None = None, submitter: str = LOCAL, log: str = ""
    ) -> tuple[JobView, bool]:
        """Add a job; return it, and whether it is new (see `JobStore.submit`)."""
        job, changed = await self.store.submit(request, key, submitter, log)
        self._announce(changed)
        self._ask([job.id])
        return job, changed is not None

    async def submit_all(
        self, requests: Sequence[JobRequest], key: str | None = None, submitter: str = LOCAL
    ) -> Submitted:
        """Add all jobs in one transaction, or none (see `submit`)."""
        ids, changes = await self.store.submit_all(requests, key, submitter)
        self._announce(*changes)
        self._ask(ids)
        return Submitted(jobs=ids, created=len(changes))

    async def abort_all(
        self, request: AbortRequest, caller: str = LOCAL, owner: str | None = None
    ) -> Aborted:
        """Abort many jobs (see `bulk_jobs.abort`)."""
        aborted, changes = await self.store.abort_all(request, caller, owner)
        self._announce(*changes)
        return aborted

    async def restart_all(
        self, request: RestartRequest, caller: str = LOCAL, owner: str | None = None
    ) -> Restarted:
        """Restart many finished jobs (see `bulk_jobs.restart`)."""
        restarted, changes = await self.store.restart_all(request, caller, owner)
        self._announce(*changes)
        self._ask(restarted.restarted)
        return restarted

    async def abort_group(self, submitter: str, name: str, owner: str | None = None) -> Aborted:
        """Abort the unfinished jobs of a group, at most a thousand."""
        aborted, changes = await self.store.abort_group(submitter, name, owner)
        self._announce(*changes)
        return aborted

    async def job(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if it does not exist."""
        return self._shown(await self.store.get(job_id))

    async def jobs(self, conditions: JobFilter, caller: str = LOCAL) -> JobPage:
        """Return a page of the matching jobs, newest first."""
        page = await self.store.page(conditions, caller)
        return JobPage(jobs=list(map(self._shown, page.jobs)), next=page.next)

    async def abort(self, job_id: int, owner: str | None = None) -> JobView:
        """Abort the job and stop its running step (see `JobStore.abort`)."""
        self._announce(await self.store.abort(job_id, owner))
        return await self.store.get(job_id)

    async def restart(
        self, job_id: int, from_step: int | None = None, owner: str | None = None
    ) -> JobView:
        """Restart a finished job from a step (see `JobStore.restart`)."""
        self._announce(await self.store.restart(job_id, from_step, owner))
        self._ask([job_id])
        return await self.store.get(job_id)

    async def tag(self, job_id: int, tags: Sequence[str], owner: str | None = None) -> JobView:
        """Replace the job's tags (see `JobStore.tag`)."""
        job = await self.store.tag(job_id, tags, owner)
        self.changes.wake()
        return job

    def follow(self, job_id: int, last: int = 0) -> AsyncIterator[list[StreamedEvent]]:
        """Yield the job's events after number `last` in batches, until it has finished.

        Raises InfrastructureError `scheduler_stopping` if the scheduler stops first.
        """
        events = self.followers.follow(job_id, last)
        if self._attendance is None:
            return events
        return self._attended(self._attendance, job_id, events)

    async def log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[str]:
        """Yield the job's log so far, in parts."""
        last = -1
        text, now = "", 0
        while now != last:
            yield text
            last = now
            text, now = await self.log_after(job_id, last, step, attempt)

    async def log_after(
        self, job_id: int, after: int, step: int | None = None, attempt: int | None = None
    ) -> tuple[str, int]:
        """Return the next part of the log after event `after`, and the number of its last event.

        The number is `after` if nothing was logged since.
        """
        events = await self.store.log(job_id, after, step, attempt)
        return "".join(event.data["text"] for event in events), max(
            (event.id for event in events), default=after
        )

    async def artifact(self, job_id: int, number: int, name: str) -> Artifact:
        """Return an artifact of a step by name; raise NotFound if there is none."""
        for artifact in await self.store.artifacts(job_id, number):
            if artifact.name == name:
                return artifact
        raise NotFound("artifact_not_found", f"step {number} of job {job_id} left no {name!r}")

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, claim: Claim) -> Claimed:
        """Lease queued steps to the worker: the fairest ones that it can run.

        While a disk has no room for a job, none is leased: its attempts would fail.
        """
        self.store.obstacle = await self._disk.complaint()
        if self.store.obstacle and not claim.again:  # a repeated claim gets its leases again
            claim = claim.model_copy(update={"want": 0, "woken": False})
        claimed, changes = await self.store.claim(claim)
        if self.entries.dropped.names:
            claimed = claimed.model_copy(update={"dropped": self.entries.dropped.names})
        self._announce(*changes)
        if claim.woken:  # steps may be left that no notice has been sent for
            self._notifier.notify(claimed.more)
        return claimed

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and store log and progress; return False if the lease is stale."""
        return self._announce(await self.store.report(lease, log, progress))

    async def finish(self, lease: UUID, ending: AttemptEnding) -> bool:
        """End the attempt; return False if the lease is stale."""
        return self._announce(await self.store.finish(lease, ending))

    async def release(self, lease: UUID) -> bool:
        """Give the step back unfinished; return False if the lease is stale."""
        return self._announce(await self.store.release(lease))

    async def hold(self, lease: UUID, name: str) -> bool:
        """Lock a name for the attempt until it ends (see `JobStore.hold`)."""
        return await self.store.hold(lease, name)

    async def ended(self, lease: UUID) -> bool:
        """Return whether the attempt of this lease has ended (see `JobStore.ended`)."""
        return await self.store.ended(lease)

    async def leave(self, worker: str) -> None:
        """Forget a worker that has ended."""
        await self.store.leave(worker)

    async def stay(self, worker: str) -> None:
        """Wait until cancelled: a worker in this process cannot die without the scheduler."""
        await asyncio.Event().wait()

    # --- within ---------------------------------------------------------------------------

    async def _attended(
        self, attendance: Attendance, job_id: int, events: AsyncIterator[list[StreamedEvent]]
    ) -> AsyncIterator[list[StreamedEvent]]:
        """Yield the events. Meanwhile the job may run, and abandoned jobs make room for it."""
        try:
            with attendance.followed(job_id):
                self._later(self._make_room(attendance))
                async for new in events:
                    yield new
        finally:
            self._later(self._make_room(attendance))

    async def _make_room(self, attendance: Attendance) -> None:
        """Let workers give back the steps of abandoned jobs, and notify them of waiting steps."""
        with contextlib.suppress(KgymError):  # idle workers ask by themselves
            self._notifier.stop(await self.store.leases(attendance.in_the_way))
            self._notifier.notify(await self.store.waiting())

    def _ask(self, job_ids: Iterable[int]) -> None:
        if self._attendance is not None:
            self._attendance.ask(job_ids)

    def _shown(self, job: JobView) -> JobView:
        """Return the job; queued steps that may not run because nobody waits say so."""
        if self._attendance is None or job.id in self._attendance.wanted:
            return job
        steps = [
            step.model_copy(update={"waiting": UNATTENDED}) if step.state is State.QUEUED else step
            for step in job.steps
        ]
        return job.model_copy(update={"steps": steps})

    def _later(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in the background, unless the scheduler is stopping."""
        if self._stopping.is_set():
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _announce(self, *changes: Changed | None) -> bool:
        """Tell workers and followers of committed changes; return whether there are any."""
        committed = [changed for changed in changes if changed is not None]
        for changed in committed:
            self._changed_at = asyncio.get_running_loop().time()
            self._changed.set()
            self.followers.wake([changed.job_id])
            self.changes.wake()
            self._notifier.notify(changed.queued)
            lost = [ended for ended in changed.ended if ended.outcome in {"aborted", "expired"}]
            self._notifier.stop(ended.lease for ended in lost)
            for observe in self.observers:
                for ended in changed.ended:
                    observe(ended)
        return bool(committed)

    async def _count_days(self) -> None:
        if self._attendance is None:  # else the platform ends with a command
            await asyncio.sleep(COUNT_SECONDS)
            with contextlib.suppress(KgymError):
                await self.store.statistics(StatisticsFilter(step="day"))

    async def _sweep(self) -> None:
        # After a start, nothing expires for the time of one lease: while no scheduler or no
        # database was there, live workers could not extend their leases.
        clock = asyncio.get_running_loop().time
        grace = 0 if self._alone else self.store.lease.total_seconds()
        expire_from, notify_from, forget_from = clock() + grace, clock(), clock()
        while not self._stopping.is_set():
            try:
                # Clocks drift slowly, so the database's is read as rarely as all are notified.
                is_due = clock() >= notify_from
                retried, has_expired = await self.store.look(read_clock=is_due)
                self._notifier.notify(retried)
                if is_due:
                    self._notifier.notify(await self.store.waiting())
                    notify_from = clock() + NOTIFY_SECONDS
                if clock() >= forget_from:
                    await self.store.forget()
                    forget_from = clock() + FORGET_SECONDS
                if has_expired and clock() >= expire_from:
                    self._announce(*await self.store.expire())
            except (KgymError, OSError) as error:
                _log.warning("sweep failed, trying again", error=str(error))
                expire_from = clock() + self.store.lease.total_seconds()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next sweep; longer if nothing has changed for a while."""
        quiet = asyncio.get_running_loop().time() - self._changed_at
        until = asyncio.timeout(SWEEP_SECONDS if quiet < QUIET_SECONDS else QUIET_SWEEP_SECONDS)
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with until:
                if quiet < QUIET_SECONDS:
                    await self._stopping.wait()
                else:
                    await self._changed.wait()
