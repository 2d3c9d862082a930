"""SuiteCache's entries: what storage and workers' hosts keep, and what jobs came to on them.

Storage is walked every few seconds at most, whoever asks; what an entry says of itself is read
once.
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

from pydantic import BaseModel, ValidationError

from kgym.api.steps import Line, Name, Sha256
from kgym.api.suitecache import (
    ENTRY,
    DroppedEntry,
    EntryFilter,
    EntryHolder,
    EntryMaking,
    EntryPage,
    EntryView,
)
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.counts import EntryCount
from kgym_scheduler.dropped_entries import DroppedEntries
from kgym_scheduler.errors import entry_in_use, no_entry
from kgym_scheduler.job_store import JobStore

M = TypeVar("M", bound=BaseModel)

# How long a look at the storage counts.
FRESH_SECONDS = 5.0
# Bytes of what an entry says of itself: its config is most of them.
ABOUT = 8 << 20
_READ_AT_ONCE = 8
# Entries that are told of.
MOST = 10_000


class About(BaseModel):
    """What `about.json` of an entry says of it, among other things."""

    kernel_release: Name
    compiler_version: Name
    source_identity: Line
    backports: list[Name] = []
    image_sha256: Sha256 | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """What an entry says of itself."""

    about: About
    making: EntryMaking | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """What storage keeps of an entry."""

    bytes: int
    touched_at: datetime


class SuiteCacheEntries:
    """Tells which entries there are."""

    def __init__(self, store: JobStore, storage: Storage) -> None:
        self._store = store
        self._storage = storage
        self._stored: dict[str, _Stored] = {}
        self._about: dict[str, _Said | None] = {}
        self.dropped = DroppedEntries(storage)
        self._looked_at = -FRESH_SECONDS
        self._looking = asyncio.Lock()
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    async def page(self, wanted: EntryFilter) -> EntryPage:
        """Return one page of the entries that are wanted, those that were used last come first."""
        stored = await self._look()
        holders = await self._holders()
        names = sorted({*stored, *holders})[:MOST]
        counted = await self._store.counts.entries()
        shown = names if wanted.name is None else [name for name in names if name == wanted.name]
        if wanted.text is not None:
            await self._read([name for name in shown if name in stored])
            text = wanted.text.casefold()
            shown = [name for name in shown if text in self._words(name, holders.get(name, ()))]

        def used(name: str) -> tuple[float, str]:
            count, kept = counted.get(name), stored.get(name)
            at = count.active_at if count is not None else kept.touched_at if kept else None
            return -(at.timestamp() if at else 0.0), name

        shown.sort(key=used)
        begin = int(wanted.cursor or 0)
        page = shown[begin : begin + wanted.limit]
        await self._read([name for name in page if name in stored])
        following = begin + wanted.limit
        return EntryPage(
            entries=[
                self._view(name, stored.get(name), holders.get(name, ()), counted.get(name))
                for name in page
            ],
            bytes=sum(one.bytes for one in stored.values()),
            number=len(names),
            next=str(following) if following < len(shown) else None,
        )

    async def one(self, name: str) -> EntryView:
        """Return an entry; raise NotFound if neither storage nor a worker has it."""
        found = (await self.page(EntryFilter(name=name))).entries
        if not found:
            raise no_entry(name)
        return found[0]

    async def drop(self, name: str) -> DroppedEntry:
        """Remove an entry from storage, and let workers remove their copies (`DroppedEntries`).

        Raises NotFound if there is none, and Conflict while a step makes it, or jobs that have
        built or checked on it have not finished.
        """
        self._looked_at = -FRESH_SECONDS
        entry = await self.one(name)
        unfinished = sum(count for state, count in entry.states.items() if not state.final)
        if unfinished:
            raise entry_in_use(name, f"{unfinished} jobs with steps on it have not finished")
        if await self._store.held(f"suitecache/{name}"):
            raise entry_in_use(name, "a step makes it, or has just made it")
        await self.dropped.drop(name)
        self._looked_at = -FRESH_SECONDS
        return DroppedEntry(name=name, bytes=entry.bytes or 0, holders=entry.holders)

    async def _look(self) -> Mapping[str, _Stored]:
        """Return what storage keeps, as it was a few seconds ago."""
        async with self._looking:
            if time.monotonic() >= self._looked_at + FRESH_SECONDS:
                sizes = await self._storage.sizes("suitecache", 1)
                ages = await self._storage.ages("suitecache", 1)
                now = datetime.now(UTC)
                found = {prefix.rpartition("/")[2]: prefix for prefix in sizes if prefix in ages}
                before, self._stored = (
                    self._stored,
                    {
                        name: _Stored(sizes[prefix], now - timedelta(seconds=max(0, ages[prefix])))
                        for name, prefix in found.items()
                        if ENTRY.fullmatch(name)
                    },
                )
                same = {
                    name
                    for name, one in self._stored.items()
                    if name in before and before[name].bytes == one.bytes
                }
                self._about = {name: one for name, one in self._about.items() if name in same}
                self._looked_at = time.monotonic()
            return self._stored

    async def _holders(self) -> Mapping[str, Sequence[EntryHolder]]:
        """Return, by entry, the workers whose hosts keep it."""
        found = defaultdict[str, list[EntryHolder]](list)
        for worker, state, held in await self._store.held_entries():
            for one in held:
                holder = EntryHolder(worker=worker, state=state, bytes=one.bytes)
                found[one.name].append(holder)
        return found

    async def _read(self, names: Sequence[str]) -> None:
        """Learn what these entries say of themselves, those that have not been asked yet."""
        new = [name for name in names if name not in self._about]
        await asyncio.gather(*map(self._read_one, new))

    async def _read_one(self, name: str) -> None:
        async with self._reading:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "about.json"
                try:
                    await self._storage.get(f"suitecache/{name}/about.json", path)
                    about = await asyncio.to_thread(_read, About, path)
                    making = await self._making(name, about, Path(folder)) if about else None
                    self._about[name] = _Said(about, making) if about else None
                except (InfrastructureError, OSError):  # it is being stored, or removed
                    return

    async def _making(self, name: str, about: About, folder: Path) -> EntryMaking | None:
        """Return how it was made, where its image says so: earlier versions did not tell."""
        try:
            key = f"suitecache/{name}/{(about.image_sha256 or '')[:32]}/making.json"
            await self._storage.get(key, folder / "making.json")
        except InfrastructureError:
            return None
        return await asyncio.to_thread(_read, EntryMaking, folder / "making.json")

    def _words(self, name: str, holders: Sequence[EntryHolder]) -> str:
        known = self._about.get(name)
        about = known.about if known else None
        said = [name, *(one.worker for one in holders)]
        if about is not None:
            said += [about.kernel_release, about.compiler_version, about.source_identity]
        return "\n".join(said).casefold()

    def _view(
        self,
        name: str,
        stored: _Stored | None,
        holders: Sequence[EntryHolder],
        count: EntryCount | None,
    ) -> EntryView:
        said = self._about.get(name)
        about = said.about if said else None
        states = count.states if count is not None else {}
        return EntryView(
            name=name,
            kernel_release=about and about.kernel_release,
            compiler_version=about and about.compiler_version,
            source_identity=about and about.source_identity,
            backports=about.backports[:1000] if about else [],
            bytes=stored and stored.bytes,
            touched_at=stored and stored.touched_at,
            holders=list(holders),
            jobs=sum(states.values()),
            states=states,
            verdicts=count.verdicts if count is not None else {},
            created_at=count.created_at if count is not None else None,
            used_at=count.active_at if count is not None else None,
            making=said and said.making,
        )


def _read(kind: type[M], path: Path) -> M | None:
    with path.open("rb") as file:
        try:
            return kind.model_validate_json(file.read(ABOUT))
        except ValidationError:
            return None
