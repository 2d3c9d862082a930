"""Leases that run out: how long an attempt may go on without a word of its worker."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.database.tables import RUNNING, steps
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.job_changes import Changed, Changes


async def expire(
    connection: AsyncConnection, now: datetime, leases: Sequence[uuid.UUID]
) -> list[Changed]:
    """End those of the attempts whose lease has run out: each is repeated, or the step fails."""
    changes = await Changes.load_held(connection, now, leases)
    for lease in leases:
        job, step = changes.held(lease)
        if job and step and step.lease_until is not None and step.lease_until < now:
            step_rules.expire(job, step)
    return list((await changes.write()).values())


async def shorten(connection: AsyncConnection, worker_id: str, until: datetime) -> None:
    """Let a worker's leases last until then and no longer."""
    longer = steps.c.lease_until > until
    await connection.execute(
        update(steps).where(RUNNING, steps.c.worker == worker_id, longer).values(lease_until=until)
    )


async def end_all(connection: AsyncConnection, ended: datetime) -> None:
    """Let all leases have ended at this time: no worker is left."""
    await connection.execute(update(steps).where(RUNNING).values(lease_until=ended))
