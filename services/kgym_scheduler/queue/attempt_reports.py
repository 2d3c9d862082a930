"""Reports of running attempts: log and progress. Each report extends the lease."""

import json
import uuid
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import Progress
from kgym.api.states import State
from kgym_scheduler.database.tables import attempts, events, steps
from kgym_scheduler.queue.job_change import Changed
from kgym_scheduler.queue.job_changes import lock
from kgym_scheduler.queue.row_writes import forget_progress, update_rows

# A report without news writes nothing while more than this part of the lease's time is left.
FRESH = 0.9
# Maximum characters of an attempt's log in the database. The artifact `step.log` has all of it.
LOG = 64 << 20
_LEASES = 10_000


class LogVolume:
    """Bounds the log that each attempt writes to the database through this scheduler."""

    def __init__(self) -> None:
        # Characters by lease, the latest report last; beyond _LEASES, the first is forgotten.
        self._logged: dict[uuid.UUID, int] = {}

    def cut(self, lease: uuid.UUID, log: str) -> str:
        """Return the part of this piece that is still to be stored."""
        logged = self._logged.pop(lease, 0)
        self._logged[lease] = logged + len(log)
        if len(self._logged) > _LEASES:
            del self._logged[next(iter(self._logged))]
        if logged + len(log) <= LOG:
            return log
        note = f"\n(the rest of over {LOG >> 20} Mi characters is in the artifact step.log)\n"
        return log[: LOG - logged] + note if logged <= LOG else ""


_RUNNING = (
    select(*(steps.c[name] for name in ("id", "job_id", "number", "attempt", "lease_until")))
    .join(attempts, attempts.c.step_id == steps.c.id)
    .where(steps.c.lease == attempts.c.lease, attempts.c.lease == bindparam("lease"))
)


async def keep(
    connection: AsyncConnection,
    now: datetime,
    duration: timedelta,
    lease: uuid.UUID,
    log: str,
    progress: Progress | None,
) -> Changed | None:
    """Extend a lease to `duration` from now, store log and progress; None if it is stale."""
    step = await _running(connection, lease)
    if step is None:
        return None
    if log or progress or step.lease_until < now + FRESH * duration:
        await lock(connection, [step.job_id])
        if await _running(connection, lease) is None:  # it ended while we waited for the lock
            return None
        shown = {} if progress is None else {"progress": progress.model_dump_json()}
        key = {"id": step.id, "state": State.RUNNING, "lease": lease}
        await update_rows(connection, steps, [(key, {"lease_until": now + duration, **shown})])
        news: dict[str, dict[str, object]] = {"log": {"text": log}} if log else {}
        if progress is not None:
            # Only the latest progress is stored: a late follower gets one event, not thousands.
            await forget_progress(connection, [(step.job_id, step.number)])
            news["progress"] = progress.model_dump()
        about = {"job_id": step.job_id, "step": step.number, "attempt": step.attempt, "at": now}
        rows = [
            {**about, "kind": kind, "data": json.dumps({"attempt": step.attempt, **fields})}
            for kind, fields in news.items()
        ]
        if rows:
            await connection.execute(insert(events), rows)
    return Changed(step.job_id)


async def _running(connection: AsyncConnection, lease: uuid.UUID) -> Row[*tuple[Any, ...]] | None:
    """Return the running step of this lease."""
    return (await connection.execute(_RUNNING, {"lease": lease})).one_or_none()
