"""Adding a job, once for each idempotency key."""

import json
from datetime import datetime
from hashlib import sha256

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.bus import Message
from kgym.errors import UserError
from kgym.jobs import JobRequest, JobView, StepView
from kgym.states import Event, State, after
from kgym_scheduler import references
from kgym_scheduler.change import REPUBLISH, Changed
from kgym_scheduler.tables import events, facets, jobs, steps


async def known(connection: AsyncConnection, request: JobRequest, key: str) -> int | None:
    """Return the job that this key was used for; raise UserError if that was another request."""
    found = await connection.execute(
        select(jobs.c.id, jobs.c.body_hash).where(jobs.c.idempotency_key == key)
    )
    if (row := found.first()) is None:
        return None
    if row.body_hash != _hash(request):
        raise UserError(
            "key_reused",
            f"the idempotency key {key!r} was used for job {row.id}, which is another request; "
            "use a new key for a new job",
            job=row.id,
        )
    return int(row.id)


async def add(
    connection: AsyncConnection, now: datetime, request: JobRequest, key: str | None
) -> tuple[JobView, Changed]:
    """Insert the job, with its first step queued."""
    await references.check(connection, request.steps)
    first = after(State.PENDING, Event.ENQUEUE)
    inserted = await connection.execute(
        insert(jobs)
        .values(
            state=first,
            priority=request.priority,
            created_at=now,
            updated_at=now,
            idempotency_key=key,
            body_hash=_hash(request) if key else None,
            tags=json.dumps(request.tags),
        )
        .returning(jobs.c.id)
    )
    job_id = inserted.scalar_one()
    step_id = await _add_steps(connection, now, job_id, request)
    named = {f"kind:{step.kind}" for step in request.steps} | {f"tag:{t}" for t in request.tags}
    await connection.execute(
        insert(facets), [{"job_id": job_id, "facet": f, "created_at": now} for f in sorted(named)]
    )
    await connection.execute(
        insert(events).values(
            job_id=job_id,
            step=0,
            attempt=0,
            kind="state",
            at=now,
            data=json.dumps({"state": first, "job_state": first, "attempt": 0}),
        )
    )
    message = Message(step_id, request.steps[0].kind, request.priority)
    return _view(job_id, now, request), Changed(job_id, queued=(message,))


async def _add_steps(
    connection: AsyncConnection, now: datetime, job_id: int, request: JobRequest
) -> int:
    """Insert the steps; return the id of the first, which is queued."""
    rows = [
        {
            "job_id": job_id,
            "number": number,
            "kind": spec.kind,
            "state": State.PENDING if number else State.QUEUED,
            "queued_at": None if number else now,
            "not_before": None if number else now,
            "publish_at": None if number else now + REPUBLISH,
            "spec": spec.model_dump_json(),
        }
        for number, spec in enumerate(request.steps)
    ]
    first = await connection.scalar(insert(steps).values(rows[0]).returning(steps.c.id))
    if rows[1:]:
        await connection.execute(insert(steps), rows[1:])
    if first is None:
        raise AssertionError("an INSERT returned no id")
    return int(first)


def _view(job_id: int, now: datetime, request: JobRequest) -> JobView:
    """Return the job as it has just been added: what `Store.get` would read."""
    return JobView(
        id=job_id,
        state=State.QUEUED,
        tags=request.tags,
        priority=request.priority,
        created_at=now,
        updated_at=now,
        steps=[
            StepView(
                number=number,
                kind=spec.kind,
                state=State.PENDING if number else State.QUEUED,
                attempt=0,
                worker=None,
                progress=None,
                result=None,
                failure=None,
                artifacts=[],
                queued_at=None if number else now,
                started_at=None,
                finished_at=None,
                spec=spec,
            )
            for number, spec in enumerate(request.steps)
        ],
    )


def _hash(request: JobRequest) -> str:
    return sha256(request.model_dump_json().encode()).hexdigest()
