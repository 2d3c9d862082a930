"""The hourly retention, and the use of the storage.

Verdicts, results and logs in the database stay; `kgym gc` can remove more.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Row

from kgym.api.storage import Kept, KeptByAge, KeptKind, KeptOfJob, StorageView, warning
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import jobs
from kgym_scheduler.retention import artifact_retention, cache_retention
from kgym_scheduler.retention.artifact_retention import ArtifactPolicy, attempts_by_folder
from kgym_scheduler.retention.cache_retention import CachePolicy

# How long artifacts of finished jobs are kept by default.
DAYS = 30
FIRST_SECONDS, SECONDS = 30.0, 3600.0
# How long a measurement of the storage is kept: it walks all folders.
FRESH_SECONDS = 30.0
_BASE_SECONDS = 86400.0

# Prefixes in storage, and how many names below each is the folder of one item.
_FOLDERS: dict[Kept, tuple[str, int]] = {
    "artifacts": ("steps", 2),
    "bases": ("bases", 1),
    "entries": ("suitecache", 1),
    "memos": ("memo", 2),
    "sources": ("source", 1),
    "toolchains": ("toolchains", 1),
}
_AGES = (1, 7, 30, 90)
_MOST_JOBS = 50

_log = structlog.get_logger()


class Upkeep:
    """Keeps the storage within its budget, and artifacts of finished jobs for `days`."""

    def __init__(
        self, database: Database, storage: Storage, *, budget: int | None, days: float = DAYS
    ) -> None:
        self._database = database
        self._storage = storage
        self._budget = budget
        self._days = days
        self._seen: StorageView | None = None
        self._seen_at = 0.0
        self._looking = asyncio.Lock()

    async def use(self) -> StorageView:
        """Return the use of the storage, at most FRESH_SECONDS old."""
        async with self._looking:
            if self._seen is None or time.monotonic() > self._seen_at + FRESH_SECONDS:
                self._seen = await storage_use(self._database, self._storage, self._budget)
                self._seen_at = time.monotonic()
            return self._seen

    async def remove_old(self) -> int:
        """Remove what is too old or beyond the budget; return its bytes."""
        used = await storage_use(self._database, self._storage, self._budget)
        kinds = {kind.kind: kind.bytes for kind in used.kinds}
        artifacts = kinds["artifacts"]
        over = max(0, used.bytes - self._budget) if self._budget is not None else 0
        policy = ArtifactPolicy(
            artifact_age=timedelta(days=self._days), artifact_budget=max(0, artifacts - over)
        )
        old = await artifact_retention.old_files(self._database, self._storage, policy)
        gone = await artifact_retention.remove_files(self._database, self._storage, old)
        entries = await cache_retention.old_entries(self._storage, CachePolicy())
        await cache_retention.remove_entries(self._storage, entries)
        bases = await self._storage.remove_bases(_BASE_SECONDS)
        self._seen = None
        removed = sum(files.bytes for files in gone) + sum(entry.bytes for entry in entries)
        return removed + sum(bases.values())

    @asynccontextmanager
    async def kept_up(self) -> AsyncIterator["Upkeep"]:
        """Remove old files once an hour while the context lasts."""
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            try:
                if gone := await self.remove_old():
                    _log.info("retention", removed_bytes=gone)
                if words := (await self.use()).warning:
                    _log.warning("storage", message=words)
            except Exception as error:  # noqa: BLE001 - if this task died, disks would fill up silently
                _log.warning("retention", failed=repr(error))
            await asyncio.sleep(SECONDS)


async def storage_use(database: Database, storage: Storage, budget: int | None) -> StorageView:
    """Measure storage and database in bytes. Walks all folders, which may take seconds."""
    stored = {kind: await storage.sizes(*place) for kind, place in _FOLDERS.items()}
    kinds = [
        KeptKind(kind=kind, bytes=sum(sizes.values()), number=len(sizes))
        for kind, sizes in stored.items()
    ]
    kinds.append(KeptKind(kind="database", bytes=await database.size(), number=1))
    columns = jobs.c.id, jobs.c.state, jobs.c.submitter, jobs.c.tags
    async with database.read() as connection:
        rows = await attempts_by_folder(connection, stored["artifacts"], *columns)
    ages, of_jobs = Counter[int | None](), Counter[int]()
    known = {}
    now = datetime.now(UTC)
    for prefix, size in stored["artifacts"].items():
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
        ages=[KeptByAge(days=days, bytes=ages[days]) for days in (*_AGES, None)],
        jobs=[_job(known[number], size) for number, size in of_jobs.most_common(_MOST_JOBS)],
    )


def _age(now: datetime, ended: datetime | None) -> int | None:
    if ended is None:
        return None
    return next((days for days in _AGES if ended >= now - timedelta(days=days)), None)


def _job(row: Row[*tuple[Any, ...]], size: int) -> KeptOfJob:
    tags = json.loads(row.tags)
    return KeptOfJob(job=row.id, state=row.state, submitter=row.submitter, tags=tags, bytes=size)
