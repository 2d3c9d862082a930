"""Claims: of the steps that a worker can do, the fairest ones are leased to it.

One transaction serves all claims that wait. Claims of several schedulers on
one database come one after the other, so that each sees what is left; or, with
single statements, whoever took a step first has it, and the other tries again.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Integer, Row, Select, bindparam, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.steps import Failure, StepKind, StepSpec
from kgym.api.worker_calls import Assignment, Claim, Claimed, Input
from kgym_scheduler.database import views
from kgym_scheduler.database.connection import change_raced
from kgym_scheduler.database.single_statements import Connection, Found, Singles
from kgym_scheduler.database.tables import QUEUED, attempts, steps
from kgym_scheduler.database.tables import turns as turns_table
from kgym_scheduler.queue import capability_lanes, fair_queue, step_inputs, step_rules
from kgym_scheduler.queue.attended_jobs import Wanted
from kgym_scheduler.queue.claimed_jobs import ClaimedJobs
from kgym_scheduler.queue.job_changes import Changed, Changes, Step

FEW = 16
"""Steps of a lane that are read with their jobs, before it is known which are dealt out."""

_Offer = Row[*tuple[Any, ...]] | Found
"""A step that may begin."""


@dataclass(slots=True)
class _Share:
    """What one claim gets."""

    claim: Claim
    want: int
    lanes: set[int] = field(default_factory=set)
    """Ids of those that it can take steps of."""
    chosen: list[int] = field(default_factory=list)
    """Ids of steps."""
    jobs: list[int] = field(default_factory=list)
    left: set[StepKind] = field(default_factory=set)
    assignments: list[Assignment] = field(default_factory=list)


async def serve(
    connection: Connection,
    now: datetime,
    lease: timedelta,
    claims: Sequence[Claim],
    draining: Collection[str],
    wanted: Wanted | None = None,
    claimed: ClaimedJobs | None = None,
) -> list[tuple[Claimed, list[Changed]]]:
    """Answer the claims, each with what others have to be told; draining workers get nothing.

    Without `wanted`, the steps of all jobs may begin. Their jobs are remembered as `claimed`.
    """
    repeated = await _repeated(connection, [claim for claim in claims if claim.again])
    shares = [
        _Share(claim, 0 if claim.worker.id in draining or claim.id in repeated else claim.want)
        for claim in claims
    ]
    candidates, seen = await _offered(connection, now, shares, wanted)
    changed: dict[int, Changed] = {}
    if candidates:
        deal(shares, _in_order(candidates, wanted.first if wanted else ()))
        changed = await _lease(connection, now, now + lease, shares, candidates, seen, claimed)
    return [
        (
            Claimed(
                assignments=repeated.get(share.claim.id, share.assignments),
                more=sorted(share.left),
                draining=share.claim.worker.id in draining,
            ),
            [changed[job_id] for job_id in share.jobs if job_id in changed],
        )
        for share in shares
    ]


async def _offered(
    connection: Connection, now: datetime, shares: Sequence[_Share], wanted: Wanted | None
) -> tuple[Sequence[_Offer], Changes | None]:
    """Return the steps of which the shares can be made, with the turn claimed last of their kind.

    And note which lanes each can take steps of. Where they are few, their jobs come with them.
    """
    kinds = sorted({kind for share in shares for kind in share.claim.worker.kinds})
    limit = sum(share.want for share in shares) + 1
    found: Sequence[Found] | None = None
    seen: Changes | None = None
    if isinstance(connection, Singles) and limit <= FEW:
        seen, found = await Changes.load_offered(connection, now, kinds, limit)
        waiting = capability_lanes.of(found)
    elif isinstance(connection, Singles):
        waiting, found = await capability_lanes.offered(connection, now, kinds, limit)
    else:
        waiting = await capability_lanes.busy(connection, kinds, alone=True)
    for share in shares:
        worker = share.claim.worker
        share.lanes = {one.id for one in waiting if one.fits(worker.kinds, worker.capabilities)}
    served = {lane for share in shares if share.want for lane in share.lanes}
    if found is not None:
        return [step for step in found if step.lane in served], seen
    if not served or isinstance(connection, Singles):
        return [], None
    return await _candidates(connection, now, served, limit, wanted), None


def deal(shares: Sequence[_Share], candidates: Iterable[_Offer]) -> None:
    """Give each step, in order, to the claim that can take it and has got least so far."""
    for step in candidates:
        fitting = [share for share in shares if step.lane in share.lanes]
        free = [share for share in fitting if len(share.chosen) < share.want]
        if free:
            least = min(free, key=lambda share: len(share.chosen))
            least.chosen.append(step.id)
            least.jobs.append(step.job_id)
        else:
            for share in fitting:
                share.left.add(StepKind(step.kind))


async def _candidates(
    connection: AsyncConnection,
    now: datetime,
    served: Iterable[int],
    limit: int,
    wanted: Wanted | None,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the first steps of each lane, with the turn that was claimed last of their kind."""
    given: dict[str, object] = {"now": now, "limit": limit}
    places = sorted(served)
    given |= {f"lane{number}": lane for number, lane in enumerate(places)}
    if wanted is not None:
        given |= {"first": list(wanted.first), "then": list(wanted.then)}
        given |= {"never": list(wanted.never), "after": wanted.after}
    return (await connection.execute(_firsts(len(places), wanted is None), given)).all()


@cache
def _firsts(lanes: int, everybodys: bool) -> Select[*tuple[Any, ...]]:
    s, t = steps.c, turns_table.c
    first, then, never = (
        s.job_id.in_(bindparam(name, expanding=True)) for name in ("first", "then", "never")
    )
    later = (then | (s.job_id > bindparam("after", type_=Integer))) & ~never
    wanted = true() if everybodys else first | later
    order = [] if everybodys else [first.desc()]
    firsts = [
        select(s.id, s.job_id, s.lane, s.kind, s.rank, s.turn)
        .where(
            QUEUED,
            s.lane == bindparam(f"lane{number}"),
            s.not_before <= bindparam("now"),
            wanted,
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


def _in_order(candidates: Sequence[_Offer], first: Collection[int] = ()) -> list[_Offer]:
    """Sort steps by rank, then by how far their turn is from that of their kind, then by id.

    But those of some jobs come first.
    """
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
    connection: Connection,
    now: datetime,
    until: datetime,
    shares: Sequence[_Share],
    candidates: Sequence[_Offer],
    seen: Changes | None,
    claimed: ClaimedJobs | None,
) -> dict[int, Changed]:
    by_id = {step.id: step for step in candidates}
    chosen = [step_id for share in shares for step_id in share.chosen]
    jobs = {by_id[step_id].job_id for step_id in chosen}
    changes = seen or await Changes.load(connection, now, jobs)
    found = {step_id: changes.step(by_id[step_id].job_id, step_id) for step_id in chosen}
    specs = {  # the others were claimed or aborted while we waited for the job
        step_id: views.spec_of(step.spec)
        for step_id, (_, step) in found.items()
        if step and step.spec and step_rules.claimable(step, now)
    }
    if isinstance(connection, Singles) and len(specs) < len(chosen):
        raise change_raced()
    inputs = await _inputs(connection, {n: (by_id[n].job_id, spec) for n, spec in specs.items()})
    latest: dict[tuple[str, int], int] = {}
    for share in shares:
        for number, step_id in enumerate(share.chosen):
            row = by_id[step_id]
            job, step = found[step_id]
            if job is None or step is None or step_id not in specs:
                continue
            latest[row.kind, row.rank] = max(row.turn, latest.get((row.kind, row.rank), 0))
            key = share.claim.lease(number)
            job.claim(step, key, share.claim.worker.id, until)
            spec, given = inputs[step_id]
            if isinstance(spec, Failure):
                step_rules.fail(job, step, "failed", spec)
            elif isinstance(given, Failure):
                step_rules.fail(job, step, "failed", given)
            else:
                share.assignments.append(_assignment(job.id, step, key, spec, given))
    changed = await changes.write(latest)
    if claimed is not None:
        claimed.remember(changes.jobs[job_id] for job_id in changed)
    return changed


async def _inputs(
    connection: Connection, steps: Mapping[int, tuple[int, StepSpec | Failure]]
) -> dict[int, tuple[StepSpec | Failure, dict[str, Input] | Failure]]:
    """Return the specs, given with their job, each with its inputs; or why one has none."""
    read = {n: (job, spec) for n, (job, spec) in steps.items() if not isinstance(spec, Failure)}
    found = dict(zip(read, await step_inputs.resolve(connection, list(read.values())), strict=True))
    return {n: (spec, found.get(n, {})) for n, (_, spec) in steps.items()}


def _assignment(
    job_id: int,
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
    )


async def _repeated(
    connection: Connection, claims: Sequence[Claim]
) -> dict[uuid.UUID, list[Assignment]]:
    """Return what claims that come once more, because the answer was lost, got the first time.

    What has ended since, or was taken away, is left out.
    """
    leases = {claim.lease(number): claim.id for claim in claims for number in range(claim.want)}
    if not leases:
        return {}
    s, a = steps.c, attempts.c
    rows = await connection.execute(
        select(s.id, s.job_id, s.number, s.attempt, a.lease, s.spec, s.lease == a.lease)
        .join(attempts, a.step_id == s.id)
        .where(a.lease.in_(leases))
    )
    taken = rows.all()
    found = [row for row in taken if row[-1]]
    inputs = await _inputs(
        connection, {row.id: (row.job_id, views.spec_of(row.spec)) for row in found}
    )
    given: dict[uuid.UUID, list[Assignment]] = {leases[row.lease]: [] for row in taken}
    for row in found:
        spec, own = inputs[row.id]
        if not isinstance(spec, Failure) and not isinstance(own, Failure):
            given[leases[row.lease]].append(_assignment(row.job_id, row, row.lease, spec, own))
    return given
