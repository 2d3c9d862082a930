"""The store: the one class that talks to the database.

Each method is one transaction. Those that change something return, as `Changed`, what others
have to be told now that it is committed.
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
from kgym.api.groups import GroupFilter, GroupPage, GroupResultPage, GroupView
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
    lease_expiry,
    named_locks,
    place_in_queue,
    step_rules,
    submission,
)
from kgym_scheduler.queue.attended_jobs import Attendance
from kgym_scheduler.queue.job_changes import Changed, Changes, lock
from kgym_scheduler.queue.submission import Added, Submission

_Done = TypeVar("_Done")

# Rows that a sweep handles in one transaction.
BATCH = 500
# How long a step may be queued before it is worth asking why.
PATIENCE = timedelta(seconds=2)


class JobStore:
    """Jobs and their steps in a database whose tables `database.upgrade` has made."""

    def __init__(
        self,
        url: str,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], datetime] | None = None,
        attendance: Attendance | None = None,
    ) -> None:
        self.lease = timedelta(seconds=lease_seconds)
        self.database = Database(url)
        # Who waits for which job, on a platform that runs only what somebody waits for.
        self.attendance = attendance
        self.counts = Counts(self.database)
        self.change_log = ChangeLog(self.database)
        self._clock = DatabaseClock(clock)
        self._volume = attempt_reports.LogVolume()
        self._writing: set[asyncio.Task[Any]] = set()
        self._looked: datetime | None = None
        self._draining: set[str] = set()
        self._lanes: dict[capability_lanes.Place, int] = {}
        self._heard: dict[str, tuple[WorkerInfo, datetime]] = {}

    async def close(self) -> None:
        """Close the connections, once what is under way is done."""
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self.counts.close()
        await self.database.close()

    # --- for users ------------------------------------------------------------------------

    async def submit(
        self, request: JobRequest, key: str | None = None, submitter: str = LOCAL
    ) -> tuple[JobView, Changed | None]:
        """Add a job; return it as it stands.

        A key that was used before gives the job it was used for and no change.
        Raises UserError `key_reused` if that one was another request, and
        `bad_reference` if the request names a step that cannot be used.
        """
        [added] = await self._add([Submission(request, key, submitter)])
        if isinstance(added, int):
            return await self.get(added), None
        return added

    async def get(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if there is none."""
        async with self.database.read() as connection:
            job = await connection.execute(queries.job(job_id))
            if (row := job.first()) is None:
                raise no_job(job_id)
            found = (await connection.execute(queries.steps_of([job_id], specs=True))).all()
            view = views.job_view(row, found, await self._reasons(connection, found))
            return await self._placed(connection, view)

    async def state(self, job_id: int) -> State:
        """Return the job's state; raise NotFound if there is no such job."""
        async with self.database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
        if state is None:
            raise no_job(job_id)
        return State(state)

    async def artifacts(self, job_id: int, number: int) -> list[Artifact]:
        """Return the artifacts of a step; raise NotFound if there is no such step."""
        async with self.database.read() as connection:
            text = await connection.scalar(
                select(steps.c.artifacts).where(steps.c.job_id == job_id, steps.c.number == number)
            )
        if text is None:
            await self.state(job_id)
            raise no_step(job_id, number)
        return views.artifacts_of(text)

    async def page(self, wanted: JobFilter, caller: str = LOCAL) -> JobPage:
        """Return one page of the jobs that are wanted, newest first."""
        of, cursor = JobList(wanted, caller), wanted.cursor
        async with self.database.read() as connection:
            query = of.page(queries.JOB_COLUMNS, wanted.limit + 1, cursor)
            rows = (await connection.execute(query)).all()
            shown = rows[: wanted.limit]
            own = queries.steps_of((job.id for job in shown), brief=wanted.brief)
            found = (await connection.execute(own)).all()
            end = shown[-1] if len(rows) > wanted.limit else None
            if end is None and not of.is_whole:  # it has not looked at all
                last = (await connection.execute(of.last_seen(cursor))).one_or_none()
                end = last if last and last.jobs == of.scanned else None
            return JobPage(
                jobs=views.job_views(shown, found, await self._reasons(connection, found)),
                next=views.cursor(end) if end is not None else None,
            )

    async def count(self, wanted: JobConditions, caller: str = LOCAL) -> JobCount:
        """Return how many jobs are wanted; at least, where it would be many to look at."""
        of = JobList(wanted, caller)
        async with self.database.read() as connection:
            found = (await connection.execute(of.count())).one()
        return JobCount(jobs=min(found.met, of.counted), more=found.seen > of.counted)

    async def abort(self, job_id: int, owner: str | None = None) -> Changed:
        """Abort what is unfinished; raise Conflict if the job has finished otherwise.

        Raises Forbidden, as `restart` and `tag` do, if it is not the job of this owner.
        """
        async with self.database.write() as connection:
            changes = await Changes.load(connection, await self._clock.now(connection), {job_id})
            if (job := changes.jobs.get(job_id)) is None:
                raise no_job(job_id)
            _refuse_others(job_id, job.submitter, owner)
            if job.state is not State.ABORTED:
                step_rules.abort(job)
            return (await changes.write()).get(job_id, Changed(job_id))

    async def submit_all(
        self, requests: Sequence[JobRequest], key: str | None, submitter: str
    ) -> tuple[list[int], list[Changed]]:
        """Add all jobs, or none: raise the error of the first that cannot be added."""
        submissions = bulk_jobs.submissions(requests, key, submitter)
        ids, changes = [], []
        for job in await self._add(submissions, bulk_jobs.at_number):
            ids.append(job if isinstance(job, int) else job[0].id)
            changes += [] if isinstance(job, int) else [job[1]]
        return ids, changes

    async def abort_all(
        self, wanted: AbortRequest, caller: str, owner: str | None
    ) -> tuple[Aborted, list[Changed]]:
        """Abort what is unfinished of many jobs (see `bulk_jobs.abort`)."""
        async with self.database.write() as connection:
            now = await self._clock.now(connection)
            return await bulk_jobs.abort(connection, now, wanted, caller, owner)

    async def restart_all(
        self, wanted: RestartRequest, caller: str, owner: str | None
    ) -> tuple[Restarted, list[Changed]]:
        """Run many finished jobs again (see `bulk_jobs.restart`)."""
        async with self.database.write() as connection:
            now = await self._clock.now(connection)
            return await bulk_jobs.restart(connection, now, wanted, caller, owner)

    async def groups(self, wanted: GroupFilter, caller: str) -> GroupPage:
        """Return one page of the groups that are wanted, newest first."""
        async with self.database.read() as connection:
            rows, following = await groups.page(connection, wanted, caller)
        counts = await self.counts.groups([row.id for row in rows])
        shown = [groups.view(row, counts[row.id]) for row in rows if row.id in counts]
        return GroupPage(groups=shown, next=following)

    async def group(self, submitter: str, name: str) -> GroupView:
        """Return the group; raise NotFound if there is none."""
        async with self.database.read() as connection:
            row = await groups.one(connection, submitter, name)
        if (counts := (await self.counts.groups([row.id])).get(row.id)) is None:
            raise no_group(submitter, name)
        return groups.view(row, counts)

    async def group_results(
        self, submitter: str, name: str, after: int, limit: int
    ) -> GroupResultPage:
        """Return what the next jobs of a group, after number `after`, came to.

        Raises NotFound if there is no such group.
        """
        async with self.database.read() as connection:
            await groups.check(connection, submitter, name)
            return await groups.results(connection, submitter, name, after, limit)

    async def abort_group(
        self, submitter: str, name: str, owner: str | None
    ) -> tuple[Aborted, list[Changed]]:
        """Abort what is unfinished of a group (see `bulk_jobs.abort_group`)."""
        async with self.database.write() as connection:
            now = await self._clock.now(connection)
            return await bulk_jobs.abort_group(connection, now, submitter, name, owner)

    async def restart(
        self, job_id: int, from_step: int | None = None, owner: str | None = None
    ) -> Changed:
        """Run `from_step` and all after it again; without it, from the first that did not succeed.

        Raises Conflict while the job is unfinished, or if a step before has not succeeded.
        """
        async with self.database.write() as connection:
            changes = await Changes.load(connection, await self._clock.now(connection), {job_id})
            if (job := changes.jobs.get(job_id)) is None:
                raise no_job(job_id)
            _refuse_others(job_id, job.submitter, owner)
            step_rules.restart(job, from_step)
            return (await changes.write())[job_id]

    async def tag(self, job_id: int, tags: Sequence[str], owner: str | None = None) -> JobView:
        """Replace the job's tags, but for its marks, which are true as long as it is there.

        Raises UserError `false_mark` for a mark that it does not have.
        """
        async with self.database.write() as connection:
            await lock(connection, [job_id])
            j = jobs.c
            found = await connection.execute(
                select(
                    *(j.submitter, j.tags, j.state, j.created_at),
                    *(j.verdict, j.resolved, j.updated_at),
                ).where(j.id == job_id)
            )
            if (job := found.first()) is None:
                raise no_job(job_id)
            _refuse_others(job_id, job.submitter, owner)
            tags = _retagged(json.loads(job.tags), tags)
            await connection.execute(
                update(jobs).where(j.id == job_id).values(tags=json.dumps(tags))
            )
            await connection.execute(
                delete(facets).where(facets.c.job_id == job_id, facets.c.facet.startswith("tag:"))
            )
            rows = [
                {
                    "job_id": job_id,
                    "facet": f"tag:{tag}",
                    "state": job.state,
                    "created_at": job.created_at,
                    "verdict": job.verdict,
                    "resolved": job.resolved,
                    "moved_at": job.updated_at,
                }
                for tag in set(tags)
            ]
            if rows:
                await connection.execute(insert(facets), rows)
            now, data = await self._clock.now(connection), json.dumps({"tags": tags})
            told = {"job_id": job_id, "kind": "tags", "at": now, "data": data}
            await connection.execute(insert(events), [told])
        return await self.get(job_id)

    async def events(
        self, job_id: int, last: int, limit: int = BATCH
    ) -> tuple[bool, list[JobEvent]]:
        """Return whether the job is in a final state, and its events after number `last`.

        The state is read first: no event follows those that are read after a final one.
        """
        async with self.database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
            if state is None:
                raise no_job(job_id)
            rows = await connection.execute(queries.events_after(job_id, last, limit))
            return State(state).final, [views.job_event(row) for row in rows.all()]

    async def end(self, job_id: int) -> tuple[bool, int]:
        """Return whether the job has ended, and the number of its last event, or 0."""
        async with self.database.read() as connection:
            found = (await connection.execute(queries.end(job_id))).first()
        if found is None:
            raise no_job(job_id)
        return State(found.state).final, found.last_event

    async def last_events(self, job_ids: Iterable[int]) -> dict[int, int]:
        """Return, by job, the number of its last event, or 0."""
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
        """Return how many steps of each kind wait and run, and what keeps some waiting."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            waiting = {row.kind: row for row in (await connection.execute(queries.waiting())).all()}
            busy = [row.kind for row in (await connection.execute(queries.running())).all()]
            lined = await capability_lanes.busy(connection, list(StepKind))
            live = await self._live(connection)
        reasons = [
            (lane.kind, reason) for lane in lined if (reason := known_workers.why(lane, live))
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
        """Return the workers, by name: those alive, and those lost within a day."""
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
        """Return, by name, what has become of the workers that `workers` returns."""
        async with self.database.read() as connection:
            return await known_workers.states(connection, await self._clock.now(connection))

    async def drain(self, worker_id: str) -> WorkerView:
        """Let a worker take no more; raise NotFound if there is none of this name."""
        async with self.database.write() as connection:
            found = await known_workers.drain(connection, worker_id)
        if not found:
            raise no_worker(worker_id)
        self._draining.add(worker_id)
        for worker in await self.workers():
            if worker.id == worker_id:
                return worker
        raise no_worker(worker_id)  # it has left between the two

    async def held_entries(self) -> list[tuple[str, WorkerState, list[HeldEntry]]]:
        """Return, by worker, what has become of it, and which entries its host keeps."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            return await known_workers.held_entries(connection, now)

    async def held(self, name: str) -> bool:
        """Return whether an attempt that runs holds this name (see `hold`)."""
        async with self.database.read() as connection:
            return await named_locks.held(connection, name)

    async def statistics(self, wanted: StatisticsFilter) -> Statistics:
        """Return how many attempts ended in each minute, hour or day, and how."""
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
        return await self.counts.statistics(wanted, now)

    async def ping(self) -> None:
        """Raise InfrastructureError if the database does not answer."""
        async with self.database.read() as connection:
            await connection.execute(select(literal(1)))

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, claim: Claim) -> tuple[Claimed, list[Changed]]:
        """Lease queued steps to the worker: the fairest ones that it can do."""
        return await self._to_the_end(partial(self._serve, claim))

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> Changed | None:
        """Extend the lease and keep what is new; None if the lease is stale."""
        kept = self._volume.cut(lease, log)

        async def keep(connection: AsyncConnection, now: datetime) -> Changed | None:
            return await attempt_reports.keep(connection, now, self.lease, lease, kept, progress)

        return await self._to_the_end(keep)

    async def finish(self, lease: uuid.UUID, ending: AttemptEnding) -> Changed | None:
        """End the attempt: go on with the next step, try again, or fail; None if it is stale."""
        return await self._end(lease, ending)

    async def release(self, lease: uuid.UUID) -> Changed | None:
        """Queue the step again without counting the attempt; None if the lease is stale."""
        return await self._end(lease, None)

    async def hold(self, lease: uuid.UUID, name: str) -> bool:
        """Let the attempt hold a name until it ends; False if another's does, or it is stale."""
        async with self.database.write() as connection:
            return await named_locks.take(connection, lease, name)

    async def ended(self, lease: uuid.UUID) -> bool:
        """Tell whether there was an attempt with this lease, and it has ended."""
        async with self.database.read() as connection:
            told = select(attempts.c.ended_at).where(attempts.c.lease == lease)
            return await connection.scalar(told) is not None

    async def leave(self, worker_id: str) -> None:
        """Forget a worker that has ended."""
        async with self.database.write() as connection:
            await known_workers.leave(connection, worker_id)
        self._heard.pop(worker_id, None)

    async def newest_job(self) -> int:
        """Return the number of the newest job, 0 without any."""
        async with self.database.read() as connection:
            return await connection.scalar(select(func.max(jobs.c.id))) or 0

    async def leases(self, job_ids: Collection[int]) -> Sequence[uuid.UUID]:
        """Return the leases under which steps of these jobs run."""
        async with self.database.read() as connection:
            held = select(steps.c.lease).where(RUNNING, steps.c.job_id.in_(job_ids))
            return [lease for lease in await connection.scalars(held) if lease is not None]

    # --- for the sweeper ------------------------------------------------------------------

    async def waiting(self) -> set[StepKind]:
        """Return the kinds of which steps are queued."""
        async with self.database.read() as connection:
            return {lane.kind for lane in await capability_lanes.busy(connection, list(StepKind))}

    async def read_clock(self) -> None:
        """Read the database's clock."""
        async with self.database.read() as connection:
            await self._clock.read(connection)

    async def look(self) -> tuple[set[StepKind], bool]:
        """Return the kinds of the steps whose pause has ended since the last call.

        And whether leases have run out. It learns which workers drain: others may have been told.
        """
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            given = {"since": self._looked or now, "now": now}
            found = await connection.execute(queries.NEWS, given)
        news = [(row.what, row.which) for row in found.all()]
        self._looked = now
        self._draining = {which for what, which in news if what == "draining"}
        retried = {StepKind(which) for what, which in news if what == "retried"}
        return retried, any(what == "expired" for what, _ in news)

    async def shorten(self, worker_id: str) -> None:
        """Let a worker's leases last LOST_SECONDS and no longer, unless it reports."""
        async with self.database.write() as connection:
            until = await self._clock.now(connection) + timedelta(seconds=LOST_SECONDS)
            await lease_expiry.shorten(connection, worker_id, until)

    async def expire(self, worker_id: str | None = None) -> list[Changed]:
        """End the attempts, of this worker or of all, whose lease has run out.

        Each is repeated, or the step fails.
        """
        async with self.database.read() as connection:
            now = await self._clock.now(connection)
            found = queries.expired(now, BATCH, worker_id)
            leases = (await connection.scalars(found)).all()
        if not leases:
            return []
        async with self.database.write() as connection:
            return await lease_expiry.expire(connection, now, leases)

    async def orphan(self) -> None:
        """Note that no worker is left: all leases have run out."""
        async with self.database.write() as connection:
            now = await self._clock.now(connection)
            await lease_expiry.end_all(connection, now - self.lease)
            await known_workers.forget(connection, now + known_workers.REMEMBERED)

    async def forget(self) -> None:
        """Forget the workers that were lost long ago."""
        async with self.database.write() as connection:
            await known_workers.forget(connection, await self._clock.now(connection))

    # --- within ---------------------------------------------------------------------------

    async def _to_the_end(
        self, work: Callable[[AsyncConnection, datetime], Awaitable[_Done]]
    ) -> _Done:
        """Run `work` in a transaction that goes on if the caller is cancelled meanwhile.

        Workers of the embedded platform call while their attempts are cancelled, and SQLite's
        driver leaves a thread behind a cancelled statement.
        """

        async def run() -> _Done:
            async with self.database.write() as connection:
                return await work(connection, await self._clock.now(connection))

        task = asyncio.create_task(run())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _add(
        self,
        submissions: Sequence[Submission],
        locate: Callable[[int, UserError], UserError] = lambda _, error: error,
    ) -> Sequence[Added]:
        async def add(connection: AsyncConnection, now: datetime) -> Sequence[Added]:
            return await submission.add(connection, now, submissions, self._lanes, locate)

        try:
            return await self._to_the_end(add)
        except Conflict:  # the same keys came twice at once: now the other job is committed
            return await self._to_the_end(add)

    async def _serve(
        self, claim: Claim, connection: AsyncConnection, now: datetime
    ) -> tuple[Claimed, list[Changed]]:
        worker = claim.worker
        is_news = self._is_news(worker, now)
        if is_news:
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
        if is_news:
            self._heard[worker.id] = worker, now
        return answer

    def _is_news(self, worker: WorkerInfo, now: datetime) -> bool:
        known, at = self._heard.get(worker.id, (None, now))
        return worker != known or now - at >= timedelta(seconds=BEAT_SECONDS)

    async def _end(self, lease: uuid.UUID, ending: AttemptEnding | None) -> Changed | None:
        async def end(connection: AsyncConnection, now: datetime) -> Changed | None:
            return await attempt_endings.end(connection, now, lease, ending)

        return await self._to_the_end(end)

    async def _live(self, connection: AsyncConnection) -> list[WorkerInfo]:
        now = await self._clock.now(connection)
        return [
            worker
            for worker, seen_at, draining in await known_workers.known(connection)
            if known_workers.state(now, seen_at, draining=draining) == "live"
        ]

    async def _placed(self, connection: AsyncConnection, job: JobView) -> JobView:
        """Return the job with the place of its queued step, if one waits for a while."""
        since = await self._clock.now(connection) - PATIENCE
        shown = list(job.steps)
        for index, step in enumerate(shown):
            if step.state is State.QUEUED and step.queued_at and step.queued_at < since:
                live = await self._live(connection)
                found = await place_in_queue.of(connection, job.id, step.number, live)
                told = {"ahead": found.ahead, "begins_in": found.seconds}
                shown[index] = step.model_copy(update=told)
        return job.model_copy(update={"steps": shown})

    async def _reasons(
        self, connection: AsyncConnection, found: Collection[Row[Any]]
    ) -> Mapping[int, str]:
        """Return, by lane, why those of these steps that are queued for a while cannot begin."""
        since = await self._clock.now(connection) - PATIENCE
        queued = {row.lane for row in found if row.state == State.QUEUED and row.queued_at < since}
        if not queued:
            return {}
        live = await self._live(connection)
        lined = await capability_lanes.by_id(connection, queued)
        return {lane.id: reason for lane in lined if (reason := known_workers.why(lane, live))}


def _refuse_others(job_id: int, submitter: str, owner: str | None) -> None:
    """Raise Forbidden unless the job is this owner's; None may do so with everybody's."""
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
