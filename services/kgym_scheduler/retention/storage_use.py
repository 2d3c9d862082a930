"""What the storage and the database hold: by kind, by age, by job."""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select, text

from kgym.api.storage import Kept, KeptByAge, KeptKind, KeptOfJob, StorageView, warning
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import attempts, jobs, steps

_FOLDERS: dict[Kept, tuple[str, int]] = {
    "artifacts": ("steps", 2),
    "bases": ("bases", 1),
    "entries": ("suitecache", 1),
    "memos": ("memo", 2),
    "sources": ("source", 1),
    "toolchains": ("toolchains", 1),
}
"""Where they are stored, and how many names below it is a folder for each."""
_DAYS = (1, 7, 30, 90)
_JOBS = 50
_BATCH = 500


async def storage_use(database: Database, storage: Storage, budget: int | None) -> StorageView:
    """Return what is stored, in bytes: looks at every folder, which takes seconds if it is much."""
    found = {kind: await storage.sizes(*place) for kind, place in _FOLDERS.items()}
    kinds = [
        KeptKind(kind=kind, bytes=sum(sizes.values()), number=len(sizes))
        for kind, sizes in found.items()
    ]
    kinds.append(KeptKind(kind="database", bytes=await _database_size(database), number=1))
    rows = await _attempts(database, list(found["artifacts"]))
    ages, of_jobs = Counter[int | None](), Counter[int]()
    known = {}
    now = datetime.now(UTC)
    for prefix, size in found["artifacts"].items():
        row = rows.get(prefix)
        ages[_age(now, row.ended_at if row else None)] += size
        if row is not None:
            known[row.id] = row
            of_jobs[row.id] += size
    total = sum(kind.bytes for kind in kinds)
    free, disk = await storage.room() or (None, None)
    return StorageView(
        bytes=total,
        budget=budget,
        free=free,
        warning=warning(total, budget, free, disk),
        kinds=kinds,
        ages=[KeptByAge(days=days, bytes=ages[days]) for days in (*_DAYS, None)],
        jobs=[_job(known[number], size) for number, size in of_jobs.most_common(_JOBS)],
    )


async def _attempts(
    database: Database, prefixes: Sequence[str]
) -> dict[str, Row[*tuple[Any, ...]]]:
    """Return what is known of the attempts that these folders belong to."""
    leases = {}
    for prefix in prefixes:
        with contextlib.suppress(ValueError):  # of no attempt, whoever made it
            leases[UUID(hex=prefix.rpartition("/")[2])] = prefix
    found = {}
    keys = list(leases)
    async with database.read() as connection:
        for start in range(0, len(keys), _BATCH):
            rows = await connection.execute(
                select(
                    *(attempts.c.lease, attempts.c.ended_at),
                    *(jobs.c.id, jobs.c.state, jobs.c.submitter, jobs.c.tags),
                )
                .join(steps, steps.c.id == attempts.c.step_id)
                .join(jobs, jobs.c.id == steps.c.job_id)
                .where(attempts.c.lease.in_(keys[start : start + _BATCH]))
            )
            found.update({leases[row.lease]: row for row in rows.all()})
    return found


def _age(now: datetime, ended: datetime | None) -> int | None:
    if ended is None:
        return None
    return next((days for days in _DAYS if ended >= now - timedelta(days=days)), None)


def _job(row: Row[*tuple[Any, ...]], size: int) -> KeptOfJob:
    tags = json.loads(row.tags)
    return KeptOfJob(job=row.id, state=row.state, submitter=row.submitter, tags=tags, bytes=size)


async def _database_size(database: Database) -> int:
    async with database.read() as connection:
        if connection.dialect.name == "postgresql":
            query = "SELECT pg_database_size(current_database())"
        else:
            query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(await connection.scalar(text(query)))
