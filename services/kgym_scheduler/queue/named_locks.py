"""Named locks, held by running attempts: one makes a thing, others wait for it."""

import uuid

from sqlalchemy import delete, exists, select
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.database.tables import RUNNING, holds, steps

# Whether the attempt that holds a name is running.
_RUNS = exists().where(RUNNING, steps.c.lease == holds.c.lease)


async def take(connection: AsyncConnection, lease: uuid.UUID, name: str) -> bool:
    """Lock a name unless another running lease holds it; return whether this lease holds it."""
    # Locks of ended attempts are removed here, so that no ending has to know of them.
    await connection.execute(delete(holds).where(~_RUNS))
    if await connection.scalar(select(steps.c.id).where(RUNNING, steps.c.lease == lease)) is None:
        return False
    await connection.execute(insert(holds).values(name=name, lease=lease).on_conflict_do_nothing())
    holder = await connection.scalar(select(holds.c.lease).where(holds.c.name == name))
    return holder == lease


async def held(connection: AsyncConnection, name: str) -> bool:
    """Return whether a running lease holds the name."""
    query = select(holds.c.name).where(_RUNS, holds.c.name == name)
    return await connection.scalar(query) is not None
