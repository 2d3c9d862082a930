"""SuiteCache's entries that were dropped: gone from storage, and to go from workers' disks.

A mark in storage, `dropped/NAME/`, says so to all schedulers. They tell workers with the answers to
claims for as long as a mark counts; a worker removes its copy as soon as nobody uses it. Who makes
the entry again removes the mark.
"""

import asyncio
import tempfile
from pathlib import Path

import structlog

from kgym.api.suitecache import ENTRY, HELD, mark_of
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage

# How often a scheduler looks what others have dropped.
LOOK_SECONDS = 30.0
# How long workers are told: who comes later keeps its copy, within its host's budget.
TOLD_SECONDS = 3600.0

_log = structlog.get_logger()


class DroppedEntries:
    """The entries that workers are told to remove, as one scheduler knows them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.names: list[str] = []

    async def drop(self, name: str) -> None:
        """Remove an entry from storage, and have workers told."""
        with tempfile.NamedTemporaryFile() as empty:
            await self._storage.put(mark_of(name), Path(empty.name))
        await self._storage.remove(f"suitecache/{name}")
        await self.look()

    async def look(self) -> None:
        """Learn of marks, and remove those that no longer count."""
        ages = await self._storage.ages("dropped", 1)
        found = {prefix.rpartition("/")[2]: age for prefix, age in ages.items()}
        for name, age in found.items():
            if age > TOLD_SECONDS and ENTRY.fullmatch(name):
                await self._storage.remove(f"dropped/{name}")
        lasting = (name for name, age in found.items() if age <= TOLD_SECONDS)
        self.names = sorted(filter(ENTRY.fullmatch, lasting))[:HELD]

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except (InfrastructureError, OSError) as error:
                _log.warning("dropped entries are not known, trying again", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)
