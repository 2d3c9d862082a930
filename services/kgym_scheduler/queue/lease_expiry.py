"""Expiry of leases: how long an attempt may run without a report of its worker."""

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
