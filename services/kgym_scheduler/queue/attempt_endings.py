"""Endings of attempts: finished or released by their worker, or expired with their lease."""

import re
import uuid
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import Artifact
from kgym.api.worker_calls import AttemptEnding, attempt_folder
from kgym.errors import UserError
from kgym_scheduler.database.tables import RUNNING, attempts, steps
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.job_change import Changed, Step
from kgym_scheduler.queue.job_changes import Changes

_OUTCOME = (
    select(steps.c.job_id, attempts.c.outcome)
    .join(steps, steps.c.id == attempts.c.step_id)
    .where(attempts.c.lease == bindparam("lease"))
)
# The suffix of the key of an artifact that is stored as the difference from a base.
_BASE = re.compile(r"~[0-9a-f]{64}$")


async def end(
    connection: AsyncConnection, now: datetime, lease: uuid.UUID, ending: AttemptEnding | None
) -> Changed | None:
    """End the attempt, or release the step if `ending` is None; return None if the lease is stale.

    If it has already ended in the same way, the call is a repetition, and the change is empty.
    Raises UserError `foreign_artifact` if the ending names files of another attempt.
    """
    changes = await Changes.load_held(connection, now, [lease])
    job, step = changes.held(lease)
    if job is None or step is None:
        return await _repeated(connection, lease, released=ending is None)
    if ending is None:
        job.requeue(step, "released", tries=step.tries - 1)
    else:
        _check_artifacts(step, lease, ending.artifacts)
        step_rules.finish(job, step, ending)
    return (await changes.write())[job.id]


async def expire(
    connection: AsyncConnection, now: datetime, leases: Sequence[uuid.UUID]
) -> list[Changed]:
    """End the attempts whose lease has expired: retry each, or fail its step."""
    # Checked again under the lock: a report may have extended a lease since it was looked up.
    changes = await Changes.load_held(connection, now, leases)
    for lease in leases:
        job, step = changes.held(lease)
        if job and step and step.lease_until is not None and step.lease_until < now:
            step_rules.expire(job, step)
    return list((await changes.write()).values())


async def shorten(connection: AsyncConnection, worker_id: str, until: datetime) -> None:
    """Shorten a worker's leases to end at `until`."""
    longer = steps.c.lease_until > until
    await connection.execute(
        update(steps).where(RUNNING, steps.c.worker == worker_id, longer).values(lease_until=until)
    )


async def end_all(connection: AsyncConnection, ended: datetime) -> None:
    """Set the end of all leases."""
    await connection.execute(update(steps).where(RUNNING).values(lease_until=ended))


def _check_artifacts(step: Step, lease: uuid.UUID, artifacts: Sequence[Artifact]) -> None:
    """Raise UserError `foreign_artifact` for an artifact that is no file of this attempt."""
    # A worker chooses the keys: a hostile one could name another job's files.
    for artifact in artifacts:
        if _BASE.sub("", artifact.key) != f"{attempt_folder(step.id, lease)}/{artifact.name}":
            message = f"{artifact.name!r} at {artifact.key!r} is no file of this attempt"
            raise UserError("foreign_artifact", message)


async def _repeated(
    connection: AsyncConnection, lease: uuid.UUID, *, released: bool
) -> Changed | None:
    """Return an empty change if the attempt has already ended in the same way."""
    row = (await connection.execute(_OUTCOME, {"lease": lease})).one_or_none()
    outcomes = {"released"} if released else {"succeeded", "failed"}
    return Changed(row.job_id) if row is not None and row.outcome in outcomes else None
