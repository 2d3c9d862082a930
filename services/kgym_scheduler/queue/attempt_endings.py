"""How attempts end: finished or released by their worker, or expired."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, select

from kgym.api.jobs import Artifact
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import UserError
from kgym_scheduler.database.single_statements import Connection
from kgym_scheduler.database.tables import attempts, steps
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.claimed_jobs import ClaimedJobs
from kgym_scheduler.queue.job_changes import Changed, Changes, Step

_OUTCOME = (
    select(attempts.c.lease, steps.c.job_id, attempts.c.outcome)
    .join(steps, steps.c.id == attempts.c.step_id)
    .where(attempts.c.lease.in_(bindparam("leases", expanding=True)))
)
_BASE = re.compile(r"~[0-9a-f]{64}$")
"""Behind the key of what is kept as its difference from a base."""
_OUTCOMES = {True: {"succeeded", "failed"}, False: {"released"}}


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What a worker says of its attempt; no ending: it gives the step back."""

    lease: uuid.UUID
    ending: AttemptEnding | None


async def end(
    connection: Connection, now: datetime, ends: Sequence[AttemptEnd], claimed: ClaimedJobs
) -> list[Changed | UserError | None]:
    """End the attempts; None for one that is stale, UserError for one that names others' files.

    One that has ended so already gives an empty change: the call came twice.
    """
    leases = [one.lease for one in ends]
    changes = claimed.take(connection, now, leases)
    if changes is None:
        changes = await Changes.load_held(connection, now, leases)
    ended: dict[int, int] = {}
    wrong: dict[int, UserError] = {}
    for number, one in enumerate(ends):
        job, step = changes.held(one.lease)
        if job is None or step is None:
            continue
        ended[number] = job.id
        if one.ending is None:
            job.requeue(step, "released", tries=step.tries - 1)
        elif error := _foreign(step, one.lease, one.ending.artifacts):
            wrong[number] = error
        else:
            step_rules.finish(job, step, one.ending)
    changed = await changes.write()
    stale = [one.lease for number, one in enumerate(ends) if number not in ended]
    again = await _outcomes(connection, stale)
    return [
        wrong.get(number)
        or (changed[ended[number]] if number in ended else _repeated(one, again.get(one.lease)))
        for number, one in enumerate(ends)
    ]


def _foreign(step: Step, lease: uuid.UUID, left: Sequence[Artifact]) -> UserError | None:
    """Return what is wrong with artifacts that are not files of this attempt.

    Where they are is a worker's word: it must not lead to another job's files.
    """
    for one in left:
        if _BASE.sub("", one.key) != f"steps/{step.id}/{lease.hex}/{one.name}":
            message = f"{one.name!r} at {one.key!r} is no file of this attempt"
            return UserError("foreign_artifact", message)
    return None


def _repeated(one: AttemptEnd, place: Row[*tuple[Any, ...]] | None) -> Changed | None:
    said = one.ending is not None
    return Changed(place.job_id) if place and place.outcome in _OUTCOMES[said] else None


async def _outcomes(
    connection: Connection, leases: Sequence[uuid.UUID]
) -> dict[uuid.UUID, Row[*tuple[Any, ...]]]:
    """Return, by lease, the job it was for, and how the attempt has ended."""
    if not leases:
        return {}
    rows = await connection.execute(_OUTCOME, {"leases": list(leases)})
    return {row.lease: row for row in rows.all()}
