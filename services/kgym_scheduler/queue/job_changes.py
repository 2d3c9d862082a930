"""One transaction's changes to jobs: their steps, the attempts, the events that tell of them.

The jobs are locked and read, the rules move their steps in memory, and `write`
writes it all, in a handful of statements whatever the number of jobs.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    Select,
    Uuid,
    any_,
    bindparam,
    case,
    literal_column,
    select,
    text,
)
from sqlalchemy import Row as Found
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import Event, State, after, job_state
from kgym.api.steps import StepKind, StepResult
from kgym.api.worker_calls import Assignment
from kgym_scheduler.database.single_statements import Connection, Singles
from kgym_scheduler.database.single_statements import Found as Offer
from kgym_scheduler.database.tables import attempts, events, facets, jobs, steps
from kgym_scheduler.queue.bulk_statement import Guard, Row
from kgym_scheduler.queue.bulk_write import NOTIFY_BELOW, BulkWrite
from kgym_scheduler.queue.capability_lanes import CLAIMING, OFFERED
from kgym_scheduler.queue.job_conclusions import NOTHING, EndedJob, EndedStep, conclude


@dataclass(slots=True)
class Step:
    """What of a step decides its next state, and what is to be written."""

    id: int
    number: int
    kind: StepKind
    lane: int
    rank: int
    state: State
    attempt: int
    tries: int
    lease: UUID | None
    lease_until: datetime | None
    not_before: datetime | None
    started_at: datetime | None
    progressed: bool
    spec: str | None
    """Only of a queued step."""
    was: tuple[State, UUID | None]
    values: dict[str, object] = field(default_factory=dict)
    answer: StepResult | None = None
    """Of the attempt that ends now: its result."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended, for those who count."""

    lease: UUID
    kind: StepKind
    outcome: str
    seconds: float
    again: bool
    """Whether another attempt follows."""
    cached: bool | None
    """Of a build that succeeded: whether the unpatched tree was there."""
    entry: str | None
    """Of a build or check that succeeded: the entry of SuiteCache that it used."""
    cause: str | None
    reason: str | None
    """Both of a failure."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What others have to be told once the change is committed."""

    job_id: int
    queued: tuple[StepKind, ...] = ()
    """The kinds of which workers have to be notified."""
    ended: tuple[EndedAttempt, ...] = ()
    handed: Assignment | None = None
    """What was leased to a worker that has not asked for it: it has to be sent."""


@dataclass(slots=True)
class JobChange:
    """A job in the middle of a transaction; nothing is written before `Changes.write`."""

    now: datetime
    id: int
    submitter: str
    was: State
    steps: list[Step]
    version: int | None
    """Of its row, as PostgreSQL counts them, where the job is not locked, or is written."""
    told: list[tuple[int, int, State, dict[str, object]]] = field(default_factory=list)
    queued: list[Step] = field(default_factory=list)
    begun: list[dict[str, Any]] = field(default_factory=list)
    ended: list[EndedAttempt] = field(default_factory=list)
    quiet: list[Step] = field(default_factory=list)
    """Steps whose progress is forgotten."""

    @property
    def state(self) -> State:
        """The state of the job, as its steps stand now."""
        return job_state([step.state for step in self.steps])

    def claim(self, step: Step, lease: UUID, worker: str, until: datetime) -> None:
        """Begin an attempt: the worker has the step under this lease, until then."""
        step.attempt, step.tries = step.attempt + 1, step.tries + 1
        self._move(
            step,
            Event.CLAIM,
            attempt=step.attempt,
            tries=step.tries,
            lease=lease,
            lease_until=until,
            worker=worker,
            started_at=self.now,
            failure=None,
            artifacts="[]",
            artifacts_gone_at=None,
        )
        step.lease, step.started_at = lease, self.now
        self.begun.append(
            {
                "lease": lease,
                "step_id": step.id,
                "number": step.attempt,
                "worker": worker,
                "started_at": self.now,
            }
        )
        self._tell(step, worker=worker)

    def end(
        self,
        step: Step,
        event: Event,
        outcome: str,
        cached: bool | None = None,
        entry: str | None = None,
        **values: object,
    ) -> None:
        """End the running attempt of a step."""
        failure = _failure(values)
        self._end_attempt(step, outcome, failure, again=False, cached=cached, entry=entry)
        self._move(step, event, finished_at=self.now, **_UNLEASED, **values)
        self._tell(step, **failure)

    def requeue(self, step: Step, outcome: str, *, delay: float = 0, **values: object) -> None:
        """End the running attempt of a step, to be followed by another after `delay` seconds."""
        failure = _failure(values)
        self._end_attempt(step, outcome, failure, again=True)
        self._enqueue(step, Event.RETRY, delay, values)
        self._tell(step, **failure)

    def enqueue(self, step: Step) -> None:
        """Queue a pending step."""
        self._enqueue(step, Event.ENQUEUE, 0, {})
        self._tell(step)

    def move(self, moved: Iterable[Step], event: Event, **values: object) -> None:
        """Let `event` happen to steps that do not run."""
        for step in moved:
            self._move(step, event, **values)
            self._tell(step)

    def _move(self, step: Step, event: Event, **values: object) -> None:
        step.state = after(step.state, event)
        step.values |= {"state": step.state, **values}

    def _enqueue(self, step: Step, event: Event, delay: float, values: dict[str, object]) -> None:
        begin = self.now + timedelta(seconds=delay)
        self._move(step, event, queued_at=self.now, not_before=begin, **_UNLEASED, **values)
        self.queued.append(step)
        step.not_before = begin

    def _end_attempt(
        self,
        step: Step,
        outcome: str,
        told: Mapping[str, Any],
        *,
        again: bool,
        cached: bool | None = None,
        entry: str | None = None,
    ) -> None:
        if step.lease is not None:
            seconds = (self.now - (step.started_at or self.now)).total_seconds()
            failure = told.get("failure", {})
            why = failure.get("cause"), _word(failure.get("reason"))
            used = cached, entry
            ended = EndedAttempt(step.lease, step.kind, outcome, seconds, again, *used, *why)
            self.ended.append(ended)
        if step.progressed:
            self.quiet.append(step)
        step.lease = None

    def events(self, came_to: Mapping[str, object]) -> list[dict[str, object]]:
        """Return what has happened as rows: each tells what has become of the job by the end.

        The last one tells what it came to.
        """
        job_state = {"job_state": self.state}
        if self.told and self.state.final:
            self.told[-1][-1].update({n: came_to[n] for n in _SHOWN if came_to.get(n) is not None})
        return [
            {
                "job_id": self.id,
                "step": number,
                "attempt": attempt,
                "kind": "state",
                "at": self.now,
                "data": json.dumps({"state": state, **job_state, "attempt": attempt, **data}),
            }
            for number, attempt, state, data in self.told
        ]

    def _tell(self, step: Step, **data: object) -> None:
        self.told.append((step.number, step.attempt, step.state, data))


# Statements that each attempt needs several times are put together once: it takes longer than to
# execute them.
_NAMED: BindParameter[int] = bindparam("jobs", expanding=True)
_JOBS = (
    select(jobs.c.id, jobs.c.submitter, jobs.c.state)
    .where(jobs.c.id.in_(_NAMED))
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
_JOBS_HELD = (
    select(jobs.c.id, jobs.c.submitter, jobs.c.state)
    .where(
        jobs.c.id.in_(
            select(steps.c.job_id)
            .join(attempts, attempts.c.step_id == steps.c.id)
            .where(attempts.c.lease.in_(bindparam("leases", expanding=True)))
        )
    )
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
_COLUMNS = (
    *("job_id", "id", "number", "kind", "lane", "rank", "state", "attempt", "tries"),
    *("lease", "lease_until", "not_before", "started_at"),
)
_STEPS = (
    select(
        *(steps.c[name] for name in _COLUMNS),
        steps.c.progress.is_not(None),
        case((steps.c.state == State.QUEUED, steps.c.spec)),
    )
    .where(steps.c.job_id.in_(_NAMED))
    .order_by(steps.c.job_id, steps.c.number)
)
# What `Changes` reads on PostgreSQL without a lock, in one statement. Whatever moves a job's steps
# writes its row, so they are as they were as long as that has its version.
_SEEN = (
    select(
        *(jobs.c.id, jobs.c.submitter, jobs.c.state, literal_column("jobs.xmin")),
        *_STEPS.selected_columns,
    )
    .join(steps, steps.c.job_id == jobs.c.id)
    .order_by(jobs.c.id, steps.c.number)
)
_SEEN_NAMED = _SEEN.where(jobs.c.id == any_(bindparam("jobs", type_=ARRAY(BigInteger))))
_SEEN_HELD = _SEEN.where(
    jobs.c.id.in_(
        select(steps.c.job_id)
        .join(attempts, attempts.c.step_id == steps.c.id)
        .where(attempts.c.lease == any_(bindparam("leases", type_=ARRAY(Uuid))))
    )
)
_OFFERED = f"""
SELECT offer.*, jobs.submitter, jobs.state, jobs.xmin,
    {", ".join(f"of_job.{name}" for name in _COLUMNS)}, of_job.progress IS NOT NULL,
    CASE WHEN of_job.state = 'queued' THEN of_job.spec END
FROM ({OFFERED}) AS offer JOIN jobs ON jobs.id = offer.job_id
    JOIN steps AS of_job ON of_job.job_id = offer.job_id
ORDER BY offer.job_id, of_job.number
"""  # noqa: S608
_SEEN_OFFERED = text(_OFFERED)
_OFFER = 8
"""Columns of an offer."""
_UNCHANGED = """
SELECT count(*) = cardinality(CAST(:jobs AS bigint[])) {also} FROM (
    SELECT FROM jobs JOIN unnest(CAST(:jobs AS bigint[]), CAST(:versions AS xid[]))
        AS seen(id, version) ON jobs.id = seen.id AND jobs.xmin = seen.version
    ORDER BY jobs.id FOR NO KEY UPDATE OF jobs) AS same
"""
_SHOWN = ("verdict", "resolved")
"""Of what a job came to, what its last event tells."""
_UNENDED: dict[str, object] = dict.fromkeys(
    ("ended_at", "outcome", "cause", "reason", "cached", "entry")
)
_UNLEASED: dict[str, object] = {"lease": None, "lease_until": None, "progress": None}


class Changes:
    """The jobs that one transaction changes, each locked against others that change it.

    Given `Singles`, none is: then `write` fails where another has changed one meanwhile.
    """

    def __init__(self, connection: Connection, now: datetime, found: list[JobChange]) -> None:
        self.jobs = {job.id: job for job in found}
        self._held = {step.lease: (job, step) for job in found for step in job.steps if step.lease}
        self._connection = connection
        self._now = now

    @classmethod
    async def load(
        cls, connection: Connection, now: datetime, job_ids: Collection[int]
    ) -> "Changes":
        """Lock and read jobs, those that there are."""
        if isinstance(connection, Singles):
            return await cls._see(connection, now, _SEEN_NAMED, {"jobs": list(job_ids)})
        return await cls._read(connection, now, await lock(connection, job_ids))

    @classmethod
    async def load_held(
        cls, connection: Connection, now: datetime, leases: Collection[UUID]
    ) -> "Changes":
        """Lock and read the jobs that these attempts are of."""
        if isinstance(connection, Singles):
            return await cls._see(connection, now, _SEEN_HELD, {"leases": list(leases)})
        rows = (await connection.execute(_JOBS_HELD, {"leases": list(leases)})).all()
        return await cls._read(connection, now, rows)

    @classmethod
    async def _read(
        cls, connection: AsyncConnection, now: datetime, rows: Sequence[Found[*tuple[Any, ...]]]
    ) -> "Changes":
        found = await connection.execute(_STEPS, {"jobs": [row.id for row in rows]})
        parts = {
            job_id: [_step(*rest) for _, *rest in group]
            for job_id, group in groupby(found.all(), lambda row: row[0])
        }
        return cls(
            connection,
            now,
            [
                JobChange(now, row.id, row.submitter, State(row.state), parts[row.id], None)
                for row in rows
            ],
        )

    @classmethod
    async def _see(
        cls, singles: Singles, now: datetime, query: Select[Any], values: Mapping[str, object]
    ) -> "Changes":
        """Read jobs, with the versions that `write` holds on to."""
        rows = await singles.execute(query, values)
        return cls(singles, now, _seen(now, map(tuple, rows)))

    @classmethod
    async def load_offered(
        cls, singles: Singles, now: datetime, kinds: Sequence[StepKind], limit: int
    ) -> tuple["Changes", list[Offer]]:
        """Read what `capability_lanes.offered` does, and the jobs of all the steps with it."""
        given = {"now": now, "kinds": list(kinds), "limit": limit}
        rows = await singles.execute(_SEEN_OFFERED, given)
        changes = cls(singles, now, _seen(now, ((row[4], *row[_OFFER:]) for row in rows)))
        return changes, [row for row in rows if row[3] == row[_OFFER + 4]]

    def held(self, lease: UUID) -> tuple[JobChange, Step] | tuple[None, None]:
        """Return a job with the step that runs under this lease."""
        job, step = self._held.get(lease, (None, None))
        return (job, step) if job and step and step.lease == lease else (None, None)

    def step(self, job_id: int, step_id: int) -> tuple[JobChange, Step] | tuple[None, None]:
        """Return a job with one of its steps."""
        job = self.jobs.get(job_id)
        found = next((step for step in job.steps if step.id == step_id), None) if job else None
        return (job, found) if job and found else (None, None)

    async def write(
        self, claimed: Mapping[tuple[str, int], int] | None = None
    ) -> dict[int, Changed]:
        """Write what has changed; return, by job, what others have to be told.

        `claimed` are the highest turns that were, by kind and rank (see `turns`).
        """
        changed = [job for job in self.jobs.values() if job.told]
        if not changed:
            return {}
        plan = BulkWrite(self._connection, _unchanged(changed, claims=claimed is not None))
        for job in changed:
            for step in job.queued:
                step.values |= plan.turn((job.submitter, str(step.kind), step.rank))
        for rows in _alike(step for job in changed for step in job.steps if step.values):
            plan.change(steps, rows)
        self._plan_attempts(plan, changed)
        await self._plan_jobs(plan, changed)
        plan.claim_turns(claimed or {})
        plan.forget_progress([(job.id, step.number) for job in changed for step in job.quiet])
        plan.tell([job.id for job in changed])
        if claimed is not None:
            plan.tell_version()
        plan.count_waiting({step.lane for job in changed for step in job.queued})
        await plan.run()
        for job in changed:
            job.version = plan.version
        due = [step for job in changed for step in job.queued if step.not_before == self._now]
        notified = {
            lane for lane in {step.lane for step in due} if plan.waiting[lane] < NOTIFY_BELOW
        }
        return {
            job.id: Changed(
                job.id,
                tuple(step.kind for step in job.queued if step in due and step.lane in notified),
                tuple(job.ended),
            )
            for job in changed
        }

    def _plan_attempts(self, plan: BulkWrite, changed: Sequence[JobChange]) -> None:
        ended = {one.lease: self._ending(one) for job in changed for one in job.ended}
        begun = [row for job in changed for row in job.begun]
        for row in begun:  # and failed at once, where an input is missing
            row.update(ended.pop(row["lease"], _UNENDED))
        plan.add(attempts, begun)
        plan.change(attempts, [({"lease": lease}, ending) for lease, ending in ended.items()])

    def _ending(self, one: EndedAttempt) -> dict[str, object]:
        return {
            "ended_at": self._now,
            "outcome": one.outcome,
            "cause": one.cause,
            "reason": one.reason,
            "cached": one.cached,
            "entry": one.entry,
        }

    async def _plan_jobs(self, plan: BulkWrite, changed: Sequence[JobChange]) -> None:
        told = await self._conclusions(changed)
        states = [(job.id, {"state": job.state, "updated_at": self._now}) for job in changed]
        plan.change(jobs, [({"id": one}, new) for one, new in states if one not in told])
        plan.change(jobs, [({"id": one}, new | told[one]) for one, new in states if one in told])
        moved = [job for job in changed if job.state != job.was]
        plan.change(facets, [({"job_id": job.id}, {"state": job.state}) for job in moved])
        plan.add(events, [row for job in changed for row in job.events(told.get(job.id, NOTHING))])

    async def _conclusions(self, changed: Sequence[JobChange]) -> dict[int, dict[str, object]]:
        """Return what is to be stored of what jobs came to: of those that end, or begin again."""
        told = {job.id: NOTHING for job in changed if job.was.final}
        ended = [_ended(job) for job in changed if job.state.final and not job.was.final]
        return told | (await conclude(self._connection, ended) if ended else {})


def _ended(job: JobChange) -> EndedJob:
    found = []
    for step in job.steps:
        failure = step.values.get("failure")
        told = failure if isinstance(failure, str) else None
        found.append(EndedStep(step.number, step.kind, step.state, step.answer, told))
    return EndedJob(job.id, job.state, found)


def _unchanged(changed: Sequence[JobChange], *, claims: bool) -> Guard | None:
    """Return what holds while no other has changed the jobs; None where they are locked.

    A claim gives way to one that holds the lock, which would miss what this one takes.
    """
    versions = {job.id: job.version for job in changed if job.version is not None}
    if not versions:
        return None
    also = f"AND pg_try_advisory_xact_lock({CLAIMING})" if claims else ""
    return Guard(
        _UNCHANGED.format(also=also), {"jobs": list(versions), "versions": list(versions.values())}
    )


def _alike(moved: Iterable[Step]) -> list[list[tuple[Row, Row]]]:
    """Return what to write to steps, each if it still is what it was, grouped by columns."""
    groups = defaultdict[tuple[str, ...], list[tuple[Row, Row]]](list)
    for step in moved:
        state, lease = step.was
        key = {"id": step.id, "state": state, "lease": lease}
        names = tuple(sorted(step.values))
        groups[names].append((key, {name: step.values[name] for name in names}))
    return list(groups.values())


async def lock(
    connection: AsyncConnection, job_ids: Collection[int]
) -> Sequence[Found[*tuple[Any, ...]]]:
    """Lock jobs until the end of the transaction; return id, submitter and state of each.

    This comes first in every transaction that changes jobs, and in the order of
    the ids: whoever waits for it reads afterwards what was committed meanwhile,
    and no two wait for each other.
    """
    return (await connection.execute(_JOBS, {"jobs": sorted(job_ids)})).all()


def _seen(now: datetime, rows: Iterable[tuple[Any, ...]]) -> list[JobChange]:
    """Return the jobs in these rows: id, submitter, state and version, then a step's columns."""
    return [
        JobChange(now, job_id, submitter, State(state), [_step(*row[5:]) for row in group], version)
        for (job_id, submitter, state, version), group in groupby(rows, lambda row: row[:4])
    ]


def _step(*columns: Any) -> Step:
    id_, number, kind, lane, rank, state, attempt, tries, lease, *rest = columns
    was = State(state), lease
    known = (id_, number, StepKind(kind), lane, rank, was[0], attempt, tries, lease, *rest, was)
    return Step(*known)


def _failure(values: dict[str, object]) -> dict[str, object]:
    failure = values.get("failure")
    return {"failure": json.loads(failure)} if isinstance(failure, str) else {}


def _word(reason: str | None) -> str | None:
    """Return the reason as text that every database takes, whatever a worker has sent."""
    return reason and "".join(c if c.isprintable() else " " for c in reason)
