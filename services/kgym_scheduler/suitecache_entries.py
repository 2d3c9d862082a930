"""SuiteCache's entries: those in storage and on workers' hosts, with the results of their jobs.

Storage is walked every few seconds at most; an entry's description is read once.
"""

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from kgym.api.outcomes import UNDER_WAY
from kgym.api.steps import Line, Name, Sha256
from kgym.api.suitecache import (
    ENTRY,
    HELD,
    DroppedEntry,
    EntryFilter,
    EntryHolder,
    EntryMaking,
    EntryPage,
    EntryView,
    mark_of,
)
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.counts import EntryCount
from kgym_scheduler.errors import entry_in_use, no_entry
from kgym_scheduler.job_store import JobStore

M = TypeVar("M", bound=BaseModel)

# How long a listing of the storage is kept.
FRESH_SECONDS = 5.0
# Maximum bytes of a description; the config is most of it.
ABOUT = 8 << 20
_READ_AT_ONCE = 8
# Maximum number of entries in lists.
MOST = 10_000
# How often a scheduler looks for entries that other schedulers have dropped.
LOOK_SECONDS = 30.0
# How long workers are told of a dropped entry. One that claims its first step later keeps its copy,
# within its host's budget.
MARK_SECONDS = 3600.0

_log = structlog.get_logger()


class About(BaseModel):
    """The parts of an entry's `about.json` that are shown."""

    kernel_release: Name
    compiler_version: Name
    source_identity: Line
    backports: list[Name] = []
    image_sha256: Sha256 | None = None


@dataclass(frozen=True, slots=True)
class _Description:
    """What an entry stores about itself."""

    about: About
    making: EntryMaking | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """An entry in storage."""

    bytes: int
    touched_at: datetime


class DroppedEntries:
    """The entries that workers are told to remove, as one scheduler knows them.

    A mark in storage, `dropped/NAME/`, tells all schedulers, which tell workers with the answers to
    claims: that needs no table and no request. A worker removes its copy once nobody uses it. The
    worker that makes the entry again removes the mark.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.names: list[str] = []

    async def drop(self, name: str) -> None:
        """Remove an entry from storage, and let workers remove their copies."""
        with tempfile.NamedTemporaryFile() as empty:
            await self._storage.put(mark_of(name), Path(empty.name))
        await self._storage.remove(f"suitecache/{name}")
        await self.look()

    async def look(self) -> None:
        """Read the marks, and remove expired ones."""
        ages = await self._storage.ages("dropped", 1)
        marks = {prefix.rpartition("/")[2]: age for prefix, age in ages.items()}
        for name, age in marks.items():
            if age > MARK_SECONDS and ENTRY.fullmatch(name):
                await self._storage.remove(f"dropped/{name}")
        lasting = (name for name, age in marks.items() if age <= MARK_SECONDS)
        self.names = sorted(filter(ENTRY.fullmatch, lasting))[:HELD]

    async def watch(self) -> None:
        """Read the marks every LOOK_SECONDS, until cancelled."""
        while True:
            try:
                await self.look()
            except (InfrastructureError, OSError) as error:
                _log.warning("dropped entries not read, trying again", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)


class SuiteCacheEntries:
    """The entries of SuiteCache."""

    def __init__(self, store: JobStore, storage: Storage) -> None:
        self._store = store
        self._storage = storage
        self._stored: dict[str, _Stored] = {}
        self._described: dict[str, _Description | None] = {}
        self.dropped = DroppedEntries(storage)
        self._listed_at = -FRESH_SECONDS
        self._listing = asyncio.Lock()
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    async def page(self, conditions: EntryFilter) -> EntryPage:
        """Return a page of the matching entries, the last used ones first."""
        stored = await self._list()
        holders = await self._holders()
        # Entries of earlier storage may be left on hosts only, so both are listed.
        names = sorted({*stored, *holders})[:MOST]
        counted = await self._store.counts.entries()
        shown = [name for name in names if conditions.name in {None, name}]
        if conditions.text is not None:
            await self._read([name for name in shown if name in stored])
            text = conditions.text.casefold()
            shown = [name for name in shown if text in self._words(name, holders.get(name, ()))]

        def used(name: str) -> tuple[float, str]:
            count, kept = counted.get(name), stored.get(name)
            at = count.active_at if count is not None else kept.touched_at if kept else None
            return -(at.timestamp() if at else 0.0), name

        shown.sort(key=used)
        begin = int(conditions.cursor or 0)
        page = shown[begin : begin + conditions.limit]
        await self._read([name for name in page if name in stored])
        following = begin + conditions.limit
        return EntryPage(
            entries=[
                self._view(name, stored.get(name), holders.get(name, ()), counted.get(name))
                for name in page
            ],
            bytes=sum(entry.bytes for entry in stored.values()),
            number=len(names),
            next=str(following) if following < len(shown) else None,
        )

    async def get(self, name: str) -> EntryView:
        """Return an entry; raise NotFound if neither storage nor a worker has it."""
        for entry in (await self.page(EntryFilter(name=name))).entries:
            return entry
        raise no_entry(name)

    async def drop(self, name: str) -> DroppedEntry:
        """Remove an entry from storage, and let workers remove their copies (`DroppedEntries`).

        Raises NotFound if it does not exist, and Conflict while a step makes it, or while jobs that
        use it have not finished.
        """
        self._listed_at = -FRESH_SECONDS
        entry = await self.get(name)
        unfinished = sum(entry.outcomes.get(outcome, 0) for outcome in set(UNDER_WAY.values()))
        if unfinished:
            raise entry_in_use(name, f"{unfinished} jobs with steps on it have not finished")
        if await self._store.held(f"suitecache/{name}"):
            raise entry_in_use(name, "a step makes it, or has just made it")
        await self.dropped.drop(name)
        self._listed_at = -FRESH_SECONDS
        return DroppedEntry(name=name, bytes=entry.bytes or 0, holders=entry.holders)

    async def _list(self) -> Mapping[str, _Stored]:
        """Return the entries in storage, at most FRESH_SECONDS old."""
        async with self._listing:
            if time.monotonic() >= self._listed_at + FRESH_SECONDS:
                sizes = await self._storage.sizes("suitecache", 1)
                ages = await self._storage.ages("suitecache", 1)
                now = datetime.now(UTC)
                before, self._stored = self._stored, {}
                for prefix in sizes.keys() & ages.keys():
                    name = prefix.rpartition("/")[2]
                    if ENTRY.fullmatch(name):
                        touched_at = now - timedelta(seconds=max(0, ages[prefix]))
                        self._stored[name] = _Stored(sizes[prefix], touched_at)
                # An entry whose size has changed was made again: its description is read again.
                for name in set(self._described):
                    old, new = before.get(name), self._stored.get(name)
                    if old is None or new is None or old.bytes != new.bytes:
                        del self._described[name]
                self._listed_at = time.monotonic()
            return self._stored

    async def _holders(self) -> Mapping[str, Sequence[EntryHolder]]:
        """Return, by entry, the workers whose hosts keep it."""
        holders = defaultdict[str, list[EntryHolder]](list)
        for worker, state, held in await self._store.held_entries():
            for entry in held:
                holder = EntryHolder(worker=worker, state=state, bytes=entry.bytes)
                holders[entry.name].append(holder)
        return holders

    async def _read(self, names: Sequence[str]) -> None:
        """Read the descriptions of these entries that have not been read yet."""
        new = [name for name in names if name not in self._described]
        await asyncio.gather(*map(self._read_description, new))

    async def _read_description(self, name: str) -> None:
        async with self._reading:
            try:
                about = await self._file(About, f"suitecache/{name}/about.json")
                making = await self._making(name, about) if about else None
                self._described[name] = _Description(about, making) if about else None
            except (InfrastructureError, OSError):  # it is being stored, or removed
                return

    async def _making(self, name: str, about: About) -> EntryMaking | None:
        """Return how the entry was made; None if the version that stored it did not record that."""
        image = (about.image_sha256 or "")[:32]
        try:
            return await self._file(EntryMaking, f"suitecache/{name}/{image}/making.json")
        except InfrastructureError:
            return None

    async def _file(self, kind: type[M], key: str) -> M | None:
        """Read a file that a worker has stored, and no more than ABOUT bytes of it."""
        text = bytearray()
        try:
            async for piece in self._storage.read(key, 0, ABOUT):
                text += piece
        except InfrastructureError as error:
            if error.reason != "artifact_truncated":
                raise
        try:
            return await asyncio.to_thread(kind.model_validate_json, bytes(text))
        except ValidationError:
            return None

    def _words(self, name: str, holders: Sequence[EntryHolder]) -> str:
        """Return the text that searches match, in lower case."""
        words = [name, *(holder.worker for holder in holders)]
        if described := self._described.get(name):
            about = described.about
            words += [about.kernel_release, about.compiler_version, about.source_identity]
        return "\n".join(words).casefold()

    def _view(
        self,
        name: str,
        stored: _Stored | None,
        holders: Sequence[EntryHolder],
        count: EntryCount | None,
    ) -> EntryView:
        described = self._described.get(name)
        about = described.about if described else None
        outcomes = count.outcomes if count is not None else {}
        return EntryView(
            name=name,
            kernel_release=about and about.kernel_release,
            compiler_version=about and about.compiler_version,
            source_identity=about and about.source_identity,
            backports=about.backports[:1000] if about else [],
            bytes=stored and stored.bytes,
            touched_at=stored and stored.touched_at,
            holders=list(holders),
            jobs=sum(outcomes.values()),
            outcomes=outcomes,
            created_at=count.created_at if count is not None else None,
            used_at=count.active_at if count is not None else None,
            making=described and described.making,
        )
