"""Retention by default: once an hour, what is too old or too much goes; and what is kept is known.

Verdicts, results and logs in the database stay; `kgym gc` removes more, when it is told to.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from kgym.api.storage import StorageView
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.connection import Database
from kgym_scheduler.retention import artifact_retention, cache_retention
from kgym_scheduler.retention.artifact_retention import ArtifactPolicy
from kgym_scheduler.retention.cache_retention import CachePolicy
from kgym_scheduler.retention.storage_use import storage_use

DAYS = 30
"""Artifacts of finished jobs are kept for so long."""
FIRST_SECONDS, SECONDS = 30.0, 3600.0
FRESH_SECONDS = 30.0
"""How long a look at the storage counts: it walks through all folders."""
_BASE_SECONDS = 86400.0

_log = structlog.get_logger()


class Upkeep:
    """Keeps the storage to its budget, and the artifacts of finished jobs for `days`."""

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
        """Return what is stored, as it was at most half a minute ago."""
        async with self._looking:
            if self._seen is None or time.monotonic() > self._seen_at + FRESH_SECONDS:
                self._seen = await storage_use(self._database, self._storage, self._budget)
                self._seen_at = time.monotonic()
            return self._seen

    async def remove_old(self) -> int:
        """Remove what is too old or too much now; return its bytes."""
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
        return (
            sum(one.bytes for one in gone) + sum(one.bytes for one in entries) + sum(bases.values())
        )

    @asynccontextmanager
    async def kept_up(self) -> AsyncIterator["Upkeep"]:
        """Do it once an hour while the context lasts."""
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
            except Exception as error:  # noqa: BLE001 - if it ended, disks would fill in silence
                _log.warning("retention", failed=repr(error))
            await asyncio.sleep(SECONDS)
