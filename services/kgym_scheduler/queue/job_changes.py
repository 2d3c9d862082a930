"""One transaction's changes to jobs: their steps, attempts and events.

The jobs are locked and read, the rules change their steps in memory, and `write` writes all
changes in a handful of statements, whatever the number of jobs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Row as SqlRow
from sqlalchemy import bindparam, case, insert, literal, select
from sqlalchemy.dialects.postgresql import insert as insert_or_skip  # SQLite has the same
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import State
from kgym.api.steps import StepKind
from kgym.api.suitecache import ENTRY
from kgym_scheduler.database.tables import attempts, events, facets, jobs, steps
from kgym_scheduler.queue import fair_queue
from kgym_scheduler.queue.job_change import Changed, EndedAttempt, JobChange, Step
from kgym_scheduler.queue.job_conclusions import NOTHING, conclude
from kgym_scheduler.queue.row_writes import Row, forget_progress, lanes_to_notify, update_rows

_STEP_COLUMNS = (
    *("id", "number", "kind", "lane", "rank", "state", "attempt", "tries"),
    *("lease", "lease_until", "not_before", "started_at"),
)
# The steps are locked with their jobs. Otherwise PostgreSQL, after a wait for another transaction,
# would read the job as that one left it, but its steps as they were before. All transactions lock
# in the order of the ids, so they cannot deadlock.
_LOCKED = (
    select(
        *(jobs.c.id, jobs.c.submitter, jobs.c.state),
        *(steps.c[name] for name in _STEP_COLUMNS),
        steps.c.progress.is_not(None),
        case((steps.c.state == State.QUEUED, steps.c.spec)),
    )
    .join(steps, steps.c.job_id == jobs.c.id)
    .order_by(jobs.c.id, steps.c.number)
    .with_for_update(key_share=True)
)
_NAMED = _LOCKED.where(jobs.c.id.in_(bindparam("jobs", expanding=True)))
_HELD = _LOCKED.where(
    jobs.c.id.in_(
        select(steps.c.job_id)
        .join(attempts, attempts.c.step_id == steps.c.id)
        .where(attempts.c.lease.in_(bindparam("leases", expanding=True)))
    )
)
_LOCK = (
    select(jobs.c.id)
    .where(jobs.c.id.in_(bindparam("jobs", expanding=True)))
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
# It copies the job's columns, so it comes after the job is written. A restarted step may have used
# the same entry before.
_ADD_ENTRY_FACETS = (
    insert_or_skip(facets)
    .from_select(
        ["job_id", "facet", "state", "created_at", "outcome", "moved_at"],
        select(
            *(jobs.c.id, literal("entry:") + attempts.c.entry, jobs.c.state, jobs.c.created_at),
            *(jobs.c.outcome, jobs.c.updated_at),
        )
        .join(steps, steps.c.job_id == jobs.c.id)
        .join(attempts, attempts.c.step_id == steps.c.id)
        .where(attempts.c.lease.in_(bindparam("leases", expanding=True))),
    )
    .on_conflict_do_nothing()
)
_ENDING = ("outcome", "cause", "reason", "cached", "entry")
_UNENDED: dict[str, object] = dict.fromkeys(("ended_at", *_ENDING))


class Changes:
    """The jobs that one transaction changes, locked until its end."""

    def __init__(
        self, connection: AsyncConnection, now: datetime, locked: Iterable[JobChange]
    ) -> None:
        self.jobs = {job.id: job for job in locked}
        self._held = {
            step.lease: (job, step)
            for job in self.jobs.values()
            for step in job.steps
            if step.lease
        }
        self._connection = connection
        self._now = now

    @classmethod
    async def load(
        cls, connection: AsyncConnection, now: datetime, job_ids: Collection[int]
    ) -> "Changes":
        """Lock and read the jobs, without those that do not exist."""
        rows = (await connection.execute(_NAMED, {"jobs": sorted(job_ids)})).all()
        return cls(connection, now, _job_changes(now, rows))

    @classmethod
    async def load_held(
        cls, connection: AsyncConnection, now: datetime, leases: Collection[UUID]
    ) -> "Changes":
        """Lock and read the jobs of these attempts."""
        rows = (await connection.execute(_HELD, {"leases": list(leases)})).all()
        return cls(connection, now, _job_changes(now, rows))

    def held(self, lease: UUID) -> tuple[JobChange, Step] | tuple[None, None]:
        """Return the running step of this lease, with its job."""
        job, step = self._held.get(lease, (None, None))
        return (job, step) if job and step and step.lease == lease else (None, None)

    def step(self, job_id: int, step_id: int) -> tuple[JobChange, Step] | tuple[None, None]:
        """Return a step with its job."""
        job = self.jobs.get(job_id)
        step = next((step for step in job.steps if step.id == step_id), None) if job else None
        return (job, step) if job and step else (None, None)

    async def write(
        self, claimed: Mapping[tuple[str, int], int] | None = None
    ) -> dict[int, Changed]:
        """Write all changes; return the changed jobs.

        `claimed` are the highest claimed turns, by kind and rank.
        """
        changed = [job for job in self.jobs.values() if job.moves]
        if not changed:
            return {}
        queued = [step for job in changed for step in job.queued]
        # No notice for a step that waits for its retry: the sweep sends it after the pause.
        due = [step for step in queued if step.not_before == self._now]
        notified = await lanes_to_notify(self._connection, {step.lane for step in due})
        await self._write_attempts(changed)
        await self._write_jobs(changed)  # before the steps: conclusions read the earlier results
        quiet = [(job.id, step.number) for job in changed for step in job.quiet]
        await forget_progress(self._connection, quiet)
        await fair_queue.claim_turns(self._connection, claimed or {})
        await self._give_turns(changed)
        for rows in _alike(step for job in changed for step in job.steps if step.values):
            await update_rows(self._connection, steps, rows)
        return {
            job.id: Changed(
                job.id,
                tuple(step.kind for step in job.queued if step in due and step.lane in notified),
                tuple(job.ended),
            )
            for job in changed
        }

    async def _give_turns(self, changed: Sequence[JobChange]) -> None:
        queued = [
            (step, (job.submitter, str(step.kind), step.rank))
            for job in changed
            for step in job.queued
        ]
        last = await fair_queue.give_turns(self._connection, Counter(queue for _, queue in queued))
        for step, queue in queued:
            last[queue] += 1
            step.values["turn"] = last[queue]

    async def _write_attempts(self, changed: Sequence[JobChange]) -> None:
        ended = {attempt.lease: self._ending(attempt) for job in changed for attempt in job.ended}
        begun = [row for job in changed for row in job.begun]
        for row in begun:  # one with a missing input ends in the same transaction
            row.update(ended.pop(row["lease"], _UNENDED))
        if begun:
            await self._connection.execute(insert(attempts), begun)
        rows = [({"lease": lease}, ending) for lease, ending in ended.items()]
        await update_rows(self._connection, attempts, rows)

    def _ending(self, attempt: EndedAttempt) -> dict[str, object]:
        return {"ended_at": self._now, **{name: getattr(attempt, name) for name in _ENDING}}

    async def _write_jobs(self, changed: Sequence[JobChange]) -> None:
        conclusions = await self._conclusions(changed)
        concluded: list[tuple[Row, Row]] = []
        others: list[tuple[Row, Row]] = []
        for job in changed:
            new = {"state": job.state, "updated_at": self._now}
            if job.id in conclusions:
                concluded.append(({"id": job.id}, new | conclusions[job.id]))
            else:
                others.append(({"id": job.id}, new))
        await update_rows(self._connection, jobs, concluded)
        await update_rows(self._connection, jobs, others)
        moved = [job for job in changed if job.state != job.was]
        copies = [
            (
                {"job_id": job.id},
                {
                    "outcome": conclusions.get(job.id, NOTHING)["outcome"],
                    "state": job.state,
                    "moved_at": self._now,
                },
            )
            for job in moved
        ]
        await update_rows(self._connection, facets, copies)
        used = [attempt for job in changed for attempt in job.ended if attempt.entry]
        # A hostile worker may name anything as the entry: only valid names become facets.
        leases = [attempt.lease for attempt in used if ENTRY.fullmatch(attempt.entry or "")]
        if leases:
            await self._connection.execute(_ADD_ENTRY_FACETS, {"leases": leases})
        new_events = [
            row for job in changed for row in job.events(conclusions.get(job.id, NOTHING))
        ]
        await self._connection.execute(insert(events), new_events)

    async def _conclusions(self, changed: Sequence[JobChange]) -> dict[int, dict[str, object]]:
        """Return the conclusions, as columns, of jobs that end; of restarted jobs, none."""
        restarted = {job.id: NOTHING for job in changed if job.was.final}
        ended = [job for job in changed if job.state.final and not job.was.final]
        return restarted | (await conclude(self._connection, ended) if ended else {})


def _alike(moved: Iterable[Step]) -> list[list[tuple[Row, Row]]]:
    """Return keys and values to write, grouped by columns; keys have the old state and lease."""
    groups = defaultdict[tuple[str, ...], list[tuple[Row, Row]]](list)
    for step in moved:
        state, lease = step.was
        key = {"id": step.id, "state": state, "lease": lease}
        names = tuple(sorted(step.values))
        groups[names].append((key, {name: step.values[name] for name in names}))
    return list(groups.values())


async def lock(connection: AsyncConnection, job_ids: Collection[int]) -> None:
    """Lock jobs until the end of the transaction."""
    # This, or `Changes.load`, comes first in every transaction that changes jobs, so that all later
    # statements see what other transactions have committed.
    await connection.execute(_LOCK, {"jobs": sorted(job_ids)})


def _job_changes(now: datetime, rows: Iterable[SqlRow[*tuple[Any, ...]]]) -> list[JobChange]:
    """Return the jobs of these rows: a job's id, submitter and state, then a step's columns."""
    return [
        JobChange(now, job_id, submitter, State(state), [_step(*row[3:]) for row in group])
        for (job_id, submitter, state), group in groupby(rows, lambda row: tuple(row[:3]))
    ]


def _step(*columns: Any) -> Step:
    id_, number, kind, lane, rank, state, attempt, tries, lease, *rest = columns
    was = State(state), lease
    known = (id_, number, StepKind(kind), lane, rank, was[0], attempt, tries, lease, *rest, was)
    return Step(*known)
