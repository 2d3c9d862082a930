"""The store: the one class that talks to the database.

Each method is one transaction. Those that change jobs return a `Changed` for each: what workers
and followers have to be told, now that it is committed.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Row, delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api import trusted_tags
from kgym.api.bulk import Aborted, AbortRequest, Restarted, RestartRequest
from kgym.api.groups import GroupFilter, GroupPage, GroupView
from kgym.api.jobs import (
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
    RunningStep,
    WorkerState,
    WorkerView,
)
from kgym.api.patch_rows import PatchPage
from kgym.api.states import State
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.steps import StepKind
from kgym.api.suitecache import HeldEntry
from kgym.api.worker_calls import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    LOST_SECONDS,
    AttemptEnding,
    Claim,
    Claimed,
    WorkerInfo,
)
from kgym.errors import Conflict, UserError
from kgym_scheduler.database import groups, queries, views
from kgym_scheduler.database.change_log import ChangeLog
from kgym_scheduler.database.clock import DatabaseClock
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.counts import Counts
from kgym_scheduler.database.job_lists import JobList
from kgym_scheduler.database.tables import LOCAL, RUNNING, attempts, events, facets, jobs, steps
from kgym_scheduler.errors import no_group, no_job, no_step, no_worker, not_yours
from kgym_scheduler.queue import (
    attempt_endings,
    attempt_reports,
    bulk_jobs,
    capability_lanes,
    claims,
    known_workers,
    named_locks,
    place_in_queue,
    step_rules,
    submission,
)
from kgym_scheduler.queue.attended_jobs import Attendance
from kgym_scheduler.queue.job_change import Changed, JobChange
from kgym_scheduler.queue.job_changes import Changes, lock
from kgym_scheduler.queue.submission import Added, Submission

_Done = TypeVar("_Done")

# Maximum number of rows that a sweep changes, or a follower reads, in one transaction.
BATCH = 500
# Why a step waits is looked up only if it is queued for longer: most begin at once.
PATIENCE = timedelta(seconds=2)


class JobStore:
    """Jobs and their steps in a database whose tables `database.upgrade` has made.

    `attendance`: who waits for which job, on a platform that runs only these jobs. `host` detects
    the capabilities of the only host, on a platform that has only one.
    """

    def __init__(
        self,
        url: str,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], datetime] | None = None,
        attendance: Attendance | None = None,
        host: known_workers.Host | None = None,
    ) -> None:
        self.lease = timedelta(seconds=lease_seconds)
        self.database = Database(url)
        self.attendance = attendance
        self.counts = Counts(self.database)
        self.change_log = ChangeLog(self.database)
        # Why no queued step can begin at present; empty if nothing hinders all of them.
        self.obstacle = ""
        self._clock = DatabaseClock(clock or self.database.host_clock)
        self._needs = known_workers.NeedsCheck(self._live_workers, host)
        self._volume = attempt_reports.LogVolume()
        self._writing: set[asyncio.Task[Any]] = set()
        self._looked_at: datetime | None = None
        self._draining: set[str] = set()
        self._lanes: dict[capability_lanes.Place, int] = {}
        # The last stored description of each worker, and when it was stored.
        self._seen: dict[str, tuple[WorkerInfo, datetime]] = {}

    async def close(self) -> None:
        """Finish pending transactions, then close the connections."""
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self.database.close()

    # --- for users ------------------------------------------------------------------------

    async def submit(
        self, request: JobRequest, key: str | None = None, submitter: str = LOCAL, log: str = ""
    ) -> tuple[JobView, Changed | None]:
        """Add a job, with the first line of its log; return it, and the change.

        If the key was used before, return that job and no change. Raises UserError `key_reused`
        if it was used for another request, `bad_reference` if the request names a step that
        cannot be used, and what `NeedsCheck.check` raises.
        """
        await self._needs.check([request])
        [added] = await self._add([Submission(request, key, submitter, log)])
        if isinstance(added, int):
            return await self.get(added), None
        return added

    async def get(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if it does not exist."""
        async with self.database.read() as connection:
            job = await connection.execute(queries.job(job_id))
            if (row := job.first()) is None:
                raise no_job(job_id)
            own = (await connection.execute(queries.steps_of([job_id], specs=True))).all()
            waiting, live, reasons = await self._waiting(connection, own)
            view = views.job_view(row, own, reasons)
            history = views.past_outcomes(await connection.execute(queries.ends_of(job_id)))
            if view.state.final:  # the last one is the current one
                history = history[:-1]
            shown = list(view.steps)
            for step in waiting:
                place = await place_in_queue.of(connection, job_id, step.number, live)
                shown[step.number] = shown[step.number].model_copy(update=place)
            return view.model_copy(update={"history": history, "steps": shown})

    async def state(self, job_id: int) -> State:
        """Return the job's state; raise NotFound if it does not exist."""
        async with self.database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
        if state is None:
            raise no_job(job_id)
        return State(state)

    async def artifacts(self, job_id: int, number: int) -> list[Artifact]:
        """Return the artifacts of a step; raise NotFound if it does not exist."""
        async with self.database.read() as connection:
            text = await connection.scalar(
                select(steps.c.artifacts).where(steps.c.job_id == job_id, steps.c.number == number)
            )
        if text is None:
            await self.state(job_id)
            raise no_step(job_id, number)
        return views.artifacts_of(text)

    async def page(self, conditions: JobFilter, caller: str = LOCAL) -> JobPage:
        """Return a page of the matching jobs, newest first."""
        matching, cursor = JobList(conditions, caller), conditions.cursor
        async with self.database.read() as connection:
            query = matching.page(queries.JOB_COLUMNS, conditions.limit + 1, cursor)
            rows = (await connection.execute(query)).all()
            shown = rows[: conditions.limit]
            own = queries.steps_of((job.id for job in shown), brief=conditions.brief)
            step_rows = (await connection.execute(own)).all()
            end = shown[-1] if len(rows) > conditions.limit else None
            if end is None and not matching.is_whole:  # the page may have ended at the scan limit
                last = (await connection.execute(matching.last_seen(cursor))).one_or_none()
                end = last if last and last.jobs == matching.scanned else None
            *_, reasons = await self._waiting(connection, step_rows)
            return JobPage(
                jobs=views.job_views(shown, step_rows, reasons),
                next=views.cursor(end) if end is not None else None,
            )

    async def count(self, conditions: JobConditions, caller: str = LOCAL) -> JobCount:
        """Count matching jobs, up to a cap."""
        matching = JobList(conditions, caller)
        async with self.database.read() as connection:
            counted = (await connection.execute(matching.count())).one()
        more = counted.seen > matching.counted
        return JobCount(jobs=min(counted.met, matching.counted), more=more)

    async def abort(self, job_id: int, owner: str | None = None) -> Changed:
        """Abort the unfinished steps; raise Conflict if the job has finished otherwise.

        Raises Forbidden, as `restart` and `tag` do, if the job belongs to another than `owner`.
        """
        return await self._change(job_id, owner, step_rules.abort)

    async def submit_all(
        self, requests: Sequence[JobRequest], key: str | None, submitter: str
    ) -> tuple[list[int], list[Changed]]:
        """Add all jobs or none; raise the error of the first that cannot be added."""
        await self._needs.check(requests)
        submissions = bulk_jobs.submissions(requests, key, submitter)
        ids, changes = [], []
        for job in await self._add(submissions, bulk_jobs.at_number):
            ids.append(job if isinstance(job, int) else job[0].id)
            changes += [] if isinstance(job, int) else [job[1]]
        return ids, changes

    async def abort_all(
        self, request: AbortRequest, caller: str, owner: str | None
    ) -> tuple[Aborted, list[Changed]]:
        """Abort many jobs (see `bulk_jobs.abort`)."""
        abort = partial(bulk_jobs.abort, request=request, caller=caller, owner=owner)
        return await self._to_the_end(abort)

    async def restart_all(
        self, request: RestartRequest, caller: str, owner: str | None
    ) -> tuple[Restarted, list[Changed]]:
        """Restart many finished jobs (see `bulk_jobs.restart`)."""
        restart = partial(bulk_jobs.restart, request=request, caller=caller, owner=owner)
        return await self._to_the_end(restart)

    async def groups(self, conditions: GroupFilter, caller: str = LOCAL) -> GroupPage:
        """Return a page of the matching groups, newest first."""
        async with self.database.read() as connection:
            rows, following = await groups.page(connection, conditions, caller)
        counts = await self.counts.groups([row.id for row in rows])
        shown = [groups.view(row, counts[row.id]) for row in rows if row.id in counts]
        return GroupPage(groups=shown, next=following)

    async def group(self, submitter: str, name: str) -> GroupView:
        """Return the group; raise NotFound if it does not exist."""
        async with self.database.read() as connection:
            row = await groups.get(connection, submitter, name)
        if (counts := (await self.counts.groups([row.id])).get(row.id)) is None:
            raise no_group(submitter, name)
        return groups.view(row, counts)

    async def group_patches(
        self, submitter: str, name: str, after: int = 0, limit: int = 200
    ) -> PatchPage:
        """Return the patches of a group's next jobs after number `after`.

        Raises NotFound if the group does not exist.
        """
        async with self.database.read() as connection:
            await groups.check(connection, submitter, name)
            return await groups.patches(connection, submitter, name, after, limit)

    async def abort_group(
        self, submitter: str, name: str, owner: str | None
    ) -> tuple[Aborted, list[Changed]]:
        """Abort the unfinished jobs of a group (see `bulk_jobs.abort_group`)."""
        abort = partial(bulk_jobs.abort_group, submitter=submitter, name=name, owner=owner)
        return await self._to_the_end(abort)

    async def restart(
        self, job_id: int, from_step: int | None = None, owner: str | None = None
    ) -> Changed:
        """Restart from step `from_step`, by default the first that did not succeed.

        Raises Conflict while the job is unfinished, or if an earlier step has not succeeded.
        """
        restart = partial(step_rules.restart, from_step=from_step)
        return await self._change(job_id, owner, restart)

    async def tag(self, job_id: int, tags: Sequence[str], owner: str | None = None) -> JobView:
        """Replace the job's tags. Trusted tags (`kgym.api.trusted_tags`) stay.

        Raises UserError `false_mark` for a trusted tag that the job does not have.
        """
        async with self.database.write() as connection:
            await lock(connection, [job_id])
            j = jobs.c
            rows = await connection.execute(
                select(
                    *(j.submitter, j.tags, j.state, j.created_at), *(j.outcome, j.updated_at)
                ).where(j.id == job_id)
            )
            if (job := rows.first()) is None:
                raise no_job(job_id)
            _refuse_others(job_id, job.submitter, owner)
            tags = _retagged(json.loads(job.tags), tags)
            await connection.execute(
                update(jobs).where(j.id == job_id).values(tags=json.dumps(tags))
            )
            await connection.execute(
                delete(facets).where(facets.c.job_id == job_id, facets.c.facet.startswith("tag:"))
            )
            tag_rows = [
                {
                    "job_id": job_id,
                    "facet": f"tag:{tag}",
                    "state": job.state,
                    "created_at": job.created_at,
                    "outcome": job.outcome,
                    "moved_at": job.updated_at,
                }
                for tag in set(tags)
            ]
            if tag_rows:
                await connection.execute(insert(facets), tag_rows)
            now, data = await self._clock.now(connection), json.dumps({"tags": tags})
            event = {"job_id": job_id, "kind": "tags", "at": now, "data": data}
            await connection.execute(insert(events), [event])
        return await self.get(job_id)

    async def events(self, job_id: int, last: int) -> tuple[bool, list[JobEvent]]:
        """Return whether the job is in a final state, and its events after number `last`."""
        # The state is read first, so that no event can follow those of a final job.
        async with self.database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
            if state is None:
                raise no_job(job_id)
            rows = await connection.execute(queries.events_after(job_id, last, BATCH))
            return State(state).final, [views.job_event(row) for row in rows.all()]

    async def end(self, job_id: int) -> tuple[bool, int]:
        """Return whether the job has ended, and the number of its last event, or 0."""
        async with self.database.read() as connection:
            row = (await connection.execute(queries.end(job_id))).first()
        if row is None:
            raise no_job(job_id)
        return State(row.state).final, row.last_event

    async def last_events(self, job_ids: Iterable[int]) -> dict[int, int]:
        """Return the number of each job's last event, 0 if it has none."""
        async with self.database.read() as connection:
            rows = (await connection.execute(queries.last_events(job_ids))).all()
        return {row.id: row.last_event for row in rows}

    async def log(
        self, job_id: int, last: int, step: int | None = None, attempt: int | None = None
    ) -> list[JobEvent]:
        """Return the next log events after number `last`, at most BATCH."""
        async with self.database.read() as connection:
            rows = await connection.execute(queries.log_after(job_id, last, BATCH, step, attempt))
            return [views.job_event(row) for row in rows.all()]

    async def queues(self) -> list[QueueView]:
        """Return how many steps of each kind wait and run, and why steps cannot begin."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            waiting = {row.kind: row for row in (await connection.execute(queries.waiting())).all()}
            busy = [row.kind for row in (await connection.execute(queries.running())).all()]
            lanes = await capability_lanes.busy(connection, list(StepKind))
            live = await self._live(connection)
        reasons = [
            (lane.kind, reason) for lane in lanes if (reason := known_workers.why(lane, live))
        ]
        return [
            QueueView(
                kind=kind,
                queued=waiting[kind].steps if kind in waiting else 0,
                running=busy.count(kind),
                oldest_seconds=(now - waiting[kind].since).total_seconds()
                if kind in waiting
                else None,
                unmet=sorted(reason for of, reason in reasons if of is kind),
            )
            for kind in StepKind
        ]

    async def workers(self) -> list[WorkerView]:
        """Return the live workers, and those lost within a day, by name."""
        async with self.database.read() as connection:
            known = await known_workers.known(connection)
            rows = (await connection.execute(queries.running())).all()
            now = await self._clock.now(connection)
        return [
            WorkerView(
                **worker.model_dump(exclude={"capabilities"}),
                capabilities=worker.capabilities,
                state=known_workers.state(now, seen_at, draining=draining),
                seen_at=seen_at,
                running=[_running_step(row) for row in rows if row.worker == worker.id],
            )
            for worker, seen_at, draining in known
        ]

    async def worker_states(self) -> dict[str, WorkerState]:
        """Return the states of the workers that `workers` returns, by name."""
        async with self.database.read() as connection:
            return await known_workers.states(connection, await self._clock.now(connection))

    async def drain(self, worker_id: str) -> WorkerView:
        """Let a worker take no more steps; raise NotFound if it does not exist."""
        async with self.database.write() as connection:
            is_known = await known_workers.drain(connection, worker_id)
        if not is_known:
            raise no_worker(worker_id)
        self._draining.add(worker_id)
        for worker in await self.workers():
            if worker.id == worker_id:
                return worker
        raise no_worker(worker_id)  # it has left in between

    async def held_entries(self) -> list[tuple[str, WorkerState, list[HeldEntry]]]:
        """Return each worker's name and state, and the SuiteCache entries its host keeps."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            return await known_workers.held_entries(connection, now)

    async def held(self, name: str) -> bool:
        """Return whether a running attempt holds this name (see `hold`)."""
        async with self.database.read() as connection:
            return await named_locks.held(connection, name)

    async def statistics(self, conditions: StatisticsFilter) -> Statistics:
        """Return how many attempts ended in each minute, hour or day, and how."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
        return await self.counts.statistics(conditions, now)

    async def ping(self) -> None:
        """Raise InfrastructureError if the database does not answer."""
        async with self.database.read() as connection:
            await connection.execute(select(literal(1)))

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, claim: Claim) -> tuple[Claimed, list[Changed]]:
        """Lease queued steps to the worker: the fairest ones that it can run."""
        return await self._to_the_end(partial(self._serve, claim))

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> Changed | None:
        """Extend the lease and store log and progress; return None if the lease is stale."""
        kept = self._volume.cut(lease, log)
        return await self._to_the_end(
            lambda connection, now: attempt_reports.keep(
                connection, now, self.lease, lease, kept, progress
            )
        )

    async def finish(self, lease: uuid.UUID, ending: AttemptEnding) -> Changed | None:
        """End the attempt: queue the next step, retry, or fail; return None if it is stale."""
        return await self._to_the_end(partial(attempt_endings.end, lease=lease, ending=ending))

    async def release(self, lease: uuid.UUID) -> Changed | None:
        """Requeue the step without counting the attempt; return None if the lease is stale."""
        return await self._to_the_end(partial(attempt_endings.end, lease=lease, ending=None))

    async def hold(self, lease: uuid.UUID, name: str) -> bool:
        """Lock a name for the attempt until it ends; False if it is locked or the lease stale."""
        async with self.database.write() as connection:
            return await named_locks.take(connection, lease, name)

    async def ended(self, lease: uuid.UUID) -> bool:
        """Return whether there was an attempt with this lease that has ended."""
        async with self.database.read() as connection:
            ended_at = select(attempts.c.ended_at).where(attempts.c.lease == lease)
            return await connection.scalar(ended_at) is not None

    async def leave(self, worker_id: str) -> None:
        """Forget a worker that has ended."""
        async with self.database.write() as connection:
            await known_workers.leave(connection, worker_id)
        self._seen.pop(worker_id, None)

    async def newest_job(self) -> int:
        """Return the number of the newest job, 0 if there is none."""
        async with self.database.read() as connection:
            return await connection.scalar(select(func.max(jobs.c.id))) or 0

    async def leases(self, job_ids: Collection[int]) -> Sequence[uuid.UUID]:
        """Return the leases of the running steps of these jobs."""
        async with self.database.read() as connection:
            held = select(steps.c.lease).where(RUNNING, steps.c.job_id.in_(job_ids))
            return [lease for lease in await connection.scalars(held) if lease is not None]

    # --- for the sweeper ------------------------------------------------------------------

    async def waiting(self) -> set[StepKind]:
        """Return the kinds of the queued steps."""
        async with self.database.read() as connection:
            return {lane.kind for lane in await capability_lanes.busy(connection, list(StepKind))}

    async def look(self, *, read_clock: bool = False) -> tuple[set[StepKind], bool]:
        """Return the kinds of the steps whose pause has ended since the last call.

        And whether leases have expired. Also learns which workers drain: another scheduler may
        have been asked to drain them. `read_clock`: read the database's clock first.
        """
        async with self.database.read() as connection:
            if read_clock:
                await self._clock.read(connection)
            now = await self._clock.now(connection)
            since = {"since": self._looked_at or now, "now": now}
            rows = await connection.execute(queries.NEWS, since)
        news = [(row.what, row.which) for row in rows.all()]
        self._looked_at = now
        self._draining = {which for what, which in news if what == "draining"}
        retried = {StepKind(which) for what, which in news if what == "retried"}
        return retried, any(what == "expired" for what, _ in news)

    async def shorten(self, worker_id: str) -> None:
        """Shorten a worker's leases to LOST_SECONDS from now. Its next report extends them."""
        async with self.database.write() as connection:
            until = await self._clock.now(connection) + timedelta(seconds=LOST_SECONDS)
            await attempt_endings.shorten(connection, worker_id, until)

    async def expire(self, worker_id: str | None = None) -> list[Changed]:
        """End attempts whose lease has expired, of this worker or of all: retry, or fail.

        At most BATCH of them.
        """
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            expired = queries.expired(now, BATCH, worker_id)
            leases = (await connection.scalars(expired)).all()
        if not leases:
            return []
        async with self.database.write() as connection:
            return await attempt_endings.expire(connection, now, leases)

    async def orphan(self) -> None:
        """Let all leases expire now, and forget all workers: none is left."""
        async with self.database.write() as connection:
            now = await self._clock.now(connection)
            await attempt_endings.end_all(connection, now - self.lease)
            await known_workers.forget(connection, now + known_workers.REMEMBERED)

    async def forget(self) -> None:
        """Forget the workers that were lost long ago."""
        async with self.database.write() as connection:
            await known_workers.forget(connection, await self._clock.now(connection))

    # --- within ---------------------------------------------------------------------------

    async def _to_the_end(
        self, work: Callable[[AsyncConnection, datetime], Awaitable[_Done]]
    ) -> _Done:
        """Run `work` in a transaction that is completed even if the caller is cancelled."""
        # Workers of the embedded platform call while their attempts are cancelled, and SQLite's
        # driver leaves a thread behind a cancelled statement.

        async def run() -> _Done:
            async with self.database.write() as connection:
                return await work(connection, await self._clock.now(connection))

        task = asyncio.create_task(run())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _change(
        self, job_id: int, owner: str | None, change: Callable[[JobChange], None]
    ) -> Changed:
        async with self.database.write() as connection:
            changes = await Changes.load(connection, await self._clock.now(connection), {job_id})
            if (job := changes.jobs.get(job_id)) is None:
                raise no_job(job_id)
            _refuse_others(job_id, job.submitter, owner)
            change(job)
            return (await changes.write()).get(job_id, Changed(job_id))

    async def _add(
        self,
        submissions: Sequence[Submission],
        locate: Callable[[int, UserError], UserError] = lambda _, error: error,
    ) -> Sequence[Added]:
        async def add(connection: AsyncConnection, now: datetime) -> Sequence[Added]:
            return await submission.add(connection, now, submissions, self._lanes, locate)

        try:
            return await self._to_the_end(add)
        except Conflict:  # a race for the same keys: by now the other job is committed
            return await self._to_the_end(add)

    async def _serve(
        self, claim: Claim, connection: AsyncConnection, now: datetime
    ) -> tuple[Claimed, list[Changed]]:
        worker = claim.worker
        stored, at = self._seen.get(worker.id, (None, now))
        # The worker's description has changed, or a beat has passed.
        is_due = worker != stored or now - at >= timedelta(seconds=BEAT_SECONDS)
        if is_due:
            await known_workers.seen(connection, now, worker)
        if claim.entries is not None:
            await known_workers.keep_entries(connection, worker.id, claim.entries)
        answer = await claims.serve(
            connection,
            self._clock,
            self.lease,
            claim,
            draining=worker.id in self._draining,
            wanted=None if self.attendance is None else self.attendance.wanted,
        )
        if is_due:
            self._seen[worker.id] = worker, now
        return answer

    async def _live_workers(self) -> list[WorkerInfo]:
        async with self.database.read() as connection:
            return await self._live(connection)

    async def _live(self, connection: AsyncConnection) -> list[WorkerInfo]:
        now = await self._clock.now(connection)
        return [
            worker
            for worker, seen_at, draining in await known_workers.known(connection)
            if known_workers.state(now, seen_at, draining=draining) == "live"
        ]

    async def _waiting(
        self, connection: AsyncConnection, step_rows: Iterable[Row[Any]]
    ) -> tuple[list[Row[Any]], list[WorkerInfo], Mapping[int, str]]:
        """Return the steps that are queued for longer than PATIENCE.

        Also return the live workers, if there are such steps; and, by lane, why queued steps cannot
        begin.
        """
        queued = [r for r in step_rows if r.state == State.QUEUED]
        since = await self._clock.now(connection) - PATIENCE
        waiting = [r for r in queued if r.queued_at < since]
        live = await self._live(connection) if waiting else []
        if self.obstacle or not waiting:
            return waiting, live, {r.lane: self.obstacle for r in queued if self.obstacle}
        lanes = await capability_lanes.by_id(connection, {r.lane for r in waiting})
        reasons = {lane.id: why for lane in lanes if (why := known_workers.why(lane, live))}
        return waiting, live, reasons


def _refuse_others(job_id: int, submitter: str, owner: str | None) -> None:
    """Raise Forbidden unless the job is this owner's, or the owner is None: an admin."""
    if owner not in {None, submitter}:
        raise not_yours(job_id, submitter)


def _retagged(old: Sequence[str], new: Sequence[str]) -> list[str]:
    true = trusted_tags.marks(old)
    if wrong := [mark for mark in trusted_tags.marks(new) if mark not in true]:
        named = ", ".join(wrong)
        raise UserError("false_mark", f"the tags {named} say what a job is; this one is not that")
    return list(dict.fromkeys([*new, *true]))


def _running_step(row: Row[Any]) -> RunningStep:
    return RunningStep(
        job=row.job_id,
        step=row.number,
        kind=StepKind(row.kind),
        attempt=row.attempt,
        started_at=row.started_at,
    )
