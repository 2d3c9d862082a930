"""Claims: a worker gets leases on the fairest of the steps that it can run.

Claims for the same lanes are serialised, also between schedulers on one database, so that each
sees which steps are left.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Integer, Row, Select, bindparam, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.steps import Failure, StepKind, StepSpec
from kgym.api.worker_calls import Assignment, Claim, Claimed, Input
from kgym_scheduler.database import views
from kgym_scheduler.database.clock import DatabaseClock
from kgym_scheduler.database.tables import LOCAL, QUEUED, attempts, jobs, steps
from kgym_scheduler.database.tables import turns as turns_table
from kgym_scheduler.queue import capability_lanes, fair_queue, step_inputs, step_rules
from kgym_scheduler.queue.attended_jobs import Wanted
from kgym_scheduler.queue.job_change import Changed, Step
from kgym_scheduler.queue.job_changes import Changes

# A step that may begin.
_Candidate = Row[*tuple[Any, ...]]


async def serve(
    connection: AsyncConnection,
    clock: DatabaseClock,
    duration: timedelta,
    claim: Claim,
    *,
    draining: bool = False,
    wanted: Wanted | None = None,
) -> tuple[Claimed, list[Changed]]:
    """Lease the fairest steps for `duration`; return them and the changes.

    A draining worker gets nothing new. Without `wanted`, all jobs may run.
    """
    if claim.again and (repeated := await _repeated(connection, claim)) is not None:
        return Claimed(assignments=repeated, draining=draining), []
    if draining or not claim.want:
        return Claimed(draining=draining), []
    worker = claim.worker
    waiting = await capability_lanes.busy(connection, worker.kinds, locked=True)
    lanes = [lane.id for lane in waiting if lane.fits(worker.kinds, worker.capabilities)]
    if not lanes:
        return Claimed(), []
    # Read after the wait for the lanes: at an earlier time, steps that were queued meanwhile would
    # not be due yet.
    now = await clock.now(connection)
    # One more than wanted, to learn whether steps are left for other workers.
    candidates = await _candidates(connection, now, lanes, claim.want + 1, wanted)
    chosen, left = candidates[: claim.want], candidates[claim.want :]
    assignments, changed = await _lease(connection, now, now + duration, claim, chosen)
    more = sorted({StepKind(step.kind) for step in left})
    return Claimed(assignments=assignments, more=more), changed


async def _candidates(
    connection: AsyncConnection,
    now: datetime,
    lanes: Sequence[int],
    limit: int,
    wanted: Wanted | None,
) -> Sequence[_Candidate]:
    """Return the first steps that may begin, at most `limit` of each lane, in order."""
    values: dict[str, object] = {"now": now, "limit": limit}
    values |= {f"lane{number}": lane for number, lane in enumerate(lanes)}
    if wanted is not None:
        values |= {"first": list(wanted.first), "then": list(wanted.then)}
        values |= {"never": list(wanted.never), "after": wanted.after}
    # The first of each lane, not of all: each lane is read in the order of its index, up to the
    # limit. The statement depends only on the number of lanes, so that it is cached.
    rows = (await connection.execute(_firsts(len(lanes), wanted is None), values)).all()
    return _in_order(rows, wanted.first if wanted else ())


@cache
def _firsts(lanes: int, all_jobs: bool) -> Select[*tuple[Any, ...]]:
    s, t = steps.c, turns_table.c
    first, then, never = (
        s.job_id.in_(bindparam(name, expanding=True)) for name in ("first", "then", "never")
    )
    later = (then | (s.job_id > bindparam("after", type_=Integer))) & ~never
    wanted = true() if all_jobs else first | later
    order = [] if all_jobs else [first.desc()]
    firsts = [
        select(s.id, s.job_id, s.lane, s.kind, s.rank, s.turn)
        .where(
            QUEUED, s.lane == bindparam(f"lane{number}"), s.not_before <= bindparam("now"), wanted
        )
        .order_by(*order, s.rank, s.turn, s.id)
        .limit(bindparam("limit", type_=Integer))
        .subquery()
        for number in range(lanes)
    ]
    f = union_all(*map(select, firsts)).subquery().c
    last = select(t.turn).where(
        t.submitter == fair_queue.NOBODY, t.kind == f.kind, t.rank == f.rank
    )
    return select(*f, last.scalar_subquery().label("last"))


def _in_order(candidates: Sequence[_Candidate], first: Collection[int]) -> list[_Candidate]:
    """Sort steps: those of the jobs `first`, then by rank, by turn and by id."""
    # Turns of different kinds are compared by their distance from the last claimed turn.
    return sorted(
        candidates,
        key=lambda step: (
            step.job_id not in first,
            step.rank,
            step.turn - (step.last or 0),
            step.id,
        ),
    )


async def _lease(
    connection: AsyncConnection,
    now: datetime,
    until: datetime,
    claim: Claim,
    chosen: Sequence[_Candidate],
) -> tuple[list[Assignment], list[Changed]]:
    changes = await Changes.load(connection, now, {row.job_id for row in chosen})
    specs: dict[int, tuple[int, StepSpec | Failure]] = {}
    for row in chosen:
        _, step = changes.step(row.job_id, row.id)
        # Locked lanes do not block aborts: the job may have been aborted while we waited for it.
        if step and step.spec and step_rules.claimable(step, now):
            specs[row.id] = row.job_id, views.spec_of(step.spec)
    inputs = await _inputs(connection, specs)
    assignments = []
    latest: dict[tuple[str, int], int] = {}
    for number, row in enumerate(chosen):
        job, step = changes.step(row.job_id, row.id)
        if job is None or step is None or step.id not in specs:
            continue
        latest[row.kind, row.rank] = max(row.turn, latest.get((row.kind, row.rank), 0))
        lease = claim.lease(number)
        job.claim(step, lease, claim.worker.id, until)
        spec, given = inputs[step.id]
        if isinstance(spec, Failure):
            step_rules.fail(job, step, "failed", spec)
        elif isinstance(given, Failure):
            step_rules.fail(job, step, "failed", given)
        else:
            assignments.append(_assignment(job.id, job.submitter, step, lease, spec, given))
    return assignments, list((await changes.write(latest)).values())


async def _inputs(
    connection: AsyncConnection, specs: Mapping[int, tuple[int, StepSpec | Failure]]
) -> dict[int, tuple[StepSpec | Failure, dict[str, Input] | Failure]]:
    """Return each spec, given with its job, with its inputs, or with a Failure."""
    read = {n: (job, spec) for n, (job, spec) in specs.items() if not isinstance(spec, Failure)}
    inputs = await step_inputs.resolve(connection, list(read.values()))
    by_step = dict(zip(read, inputs, strict=True))
    return {n: (spec, by_step.get(n, {})) for n, (_, spec) in specs.items()}


def _assignment(
    job_id: int,
    submitter: str,
    step: Step | Row[*tuple[Any, ...]],
    lease: uuid.UUID,
    spec: StepSpec,
    inputs: dict[str, Input],
) -> Assignment:
    return Assignment(
        step_id=step.id,
        job_id=job_id,
        number=step.number,
        attempt=step.attempt,
        lease=lease,
        spec=spec,
        inputs=inputs,
        local=submitter == LOCAL,
    )


async def _repeated(connection: AsyncConnection, claim: Claim) -> list[Assignment] | None:
    """Return what an earlier call of this claim leased; None if it leased nothing.

    Attempts that have ended since are left out.
    """
    leases = [claim.lease(number) for number in range(claim.want)]
    s, a = steps.c, attempts.c
    result = await connection.execute(
        select(
            *(s.id, s.job_id, s.number, s.attempt, s.spec, s.lease.label("held")),
            *(a.lease, jobs.c.submitter),
        )
        .join(attempts, a.step_id == s.id)
        .join(jobs, jobs.c.id == s.job_id)
        .where(a.lease.in_(leases))
    )
    if not (rows := result.all()):
        return None
    running = [row for row in rows if row.held == row.lease]
    inputs = await _inputs(
        connection, {row.id: (row.job_id, views.spec_of(row.spec)) for row in running}
    )
    assignments = []
    for row in running:
        spec, given = inputs[row.id]
        if not isinstance(spec, Failure) and not isinstance(given, Failure):
            given_step = row.job_id, row.submitter, row, row.lease
            assignments.append(_assignment(*given_step, spec, given))
    return assignments
