"""How attempts end: finished or released by their worker, or expired."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.assignment import Ending
from kgym.errors import UserError
from kgym.jobs import Artifact
from kgym_scheduler import rules
from kgym_scheduler.change import Changed, Changes, JobChange, Step
from kgym_scheduler.tables import attempts, steps

_PLACES = (
    select(attempts.c.lease, attempts.c.step_id, steps.c.job_id, attempts.c.outcome)
    .join(steps, steps.c.id == attempts.c.step_id)
    .where(attempts.c.lease.in_(bindparam("leases", expanding=True)))
)
_OUTCOMES = {True: {"succeeded", "failed"}, False: {"released"}}


@dataclass(frozen=True, slots=True)
class End:
    """What a worker says of its attempt; no ending: it gives the step back."""

    lease: uuid.UUID
    ending: Ending | None


async def end(
    connection: AsyncConnection, now: datetime, ends: Sequence[End]
) -> list[Changed | UserError | None]:
    """End the attempts; None for one that is stale, UserError for one that names others' files.

    One that has ended so already gives an empty change: the call came twice.
    """
    places = await _places(connection, [one.lease for one in ends])
    changes = await Changes.load(connection, now, {place.job_id for place in places.values()})
    stale = set()
    wrong: dict[int, UserError] = {}
    for number, one in enumerate(ends):
        job, step = _held(changes, places.get(one.lease), one.lease)
        if job is None or step is None:
            stale.add(number)
        elif one.ending is None:
            job.requeue(step, "released", tries=step.tries - 1)
        elif error := _foreign(step, one.lease, one.ending.artifacts):
            wrong[number] = error
        else:
            rules.finish(job, step, one.ending)
    changed = await changes.write()
    again = await _places(connection, [ends[number].lease for number in stale])
    return [
        wrong.get(number)
        or (
            _repeated(one, again.get(one.lease))
            if number in stale
            else changed[places[one.lease].job_id]
        )
        for number, one in enumerate(ends)
    ]


async def expire(
    connection: AsyncConnection, now: datetime, leases: Sequence[uuid.UUID]
) -> list[Changed]:
    """End those of the attempts whose lease has run out: each is repeated, or the step fails."""
    places = await _places(connection, leases)
    changes = await Changes.load(connection, now, {place.job_id for place in places.values()})
    for lease in leases:
        job, step = _held(changes, places.get(lease), lease)
        if job and step and step.lease_until is not None and step.lease_until < now:
            rules.expire(job, step)
    return list((await changes.write()).values())


def _foreign(step: Step, lease: uuid.UUID, left: Sequence[Artifact]) -> UserError | None:
    """Return what is wrong with artifacts that are not files of this attempt.

    Where they are is a worker's word: it must not lead to another job's files.
    """
    for one in left:
        if one.key != f"steps/{step.id}/{lease.hex}/{one.name}":
            message = f"{one.name!r} at {one.key!r} is no file of this attempt"
            return UserError("foreign_artifact", message)
    return None


def _held(
    changes: Changes, place: Row[*tuple[Any, ...]] | None, lease: uuid.UUID
) -> tuple[JobChange, Step] | tuple[None, None]:
    """Return the step that runs under this lease."""
    if place is None:
        return None, None
    job, step = changes.step(place.job_id, place.step_id)
    return (job, step) if job and step and step.lease == lease else (None, None)


def _repeated(one: End, place: Row[*tuple[Any, ...]] | None) -> Changed | None:
    said = one.ending is not None
    return Changed(place.job_id) if place and place.outcome in _OUTCOMES[said] else None


async def _places(
    connection: AsyncConnection, leases: Sequence[uuid.UUID]
) -> dict[uuid.UUID, Row[*tuple[Any, ...]]]:
    """Return, by lease, the step it was for, and how the attempt has ended."""
    if not leases:
        return {}
    rows = await connection.execute(_PLACES, {"leases": list(leases)})
    return {row.lease: row for row in rows.all()}
