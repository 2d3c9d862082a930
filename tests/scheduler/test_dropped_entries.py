"""SuiteCache's entries that are dropped: refused while in use, and told to workers for an hour."""

import os
import time
from pathlib import Path

import pytest

from kgym.api.suitecache import HeldEntry, mark_of
from kgym.errors import Conflict, NotFound
from kgym.worker.held_entries import HeldEntries
from kgym_scheduler import suitecache_entries
from kgym_scheduler.scheduler import Scheduler
from tests.refused import refused
from tests.results import built
from tests.scheduler.parts import WELL, Platform, claim_of, job

pytestmark = pytest.mark.anyio

NAME = "2d876637f14f0f8e13572962fcd97795994de775"


async def stored(scheduler: Scheduler, folder: Path) -> None:
    path = folder / "image"
    path.write_bytes(b"x" * 1000)
    await scheduler.storage.put(f"suitecache/{NAME}/0123/image.squashfs", path)


async def test_a_dropped_entry_is_gone_and_workers_are_told(
    platform: Platform, tmp_path: Path
) -> None:
    async with platform.scheduler() as scheduler:
        await stored(scheduler, tmp_path)
        held = [HeldEntry(name=NAME, bytes=1000)]
        await scheduler.claim(claim_of("one", want=0).model_copy(update={"entries": held}))
        gone = await scheduler.entries.drop(NAME)
        assert (gone.bytes, [holder.worker for holder in gone.holders]) == (1000, ["one"])
        assert (await scheduler.claim(claim_of("one", want=0))).dropped == [NAME]
        assert await scheduler.storage.sizes("suitecache", 1) == {}


async def test_every_scheduler_tells_for_an_hour(platform: Platform, tmp_path: Path) -> None:
    async with platform.scheduler() as scheduler:
        await stored(scheduler, tmp_path)
        await scheduler.entries.drop(NAME)
    other = suitecache_entries.DroppedEntries(platform.storage)
    await other.look()
    assert other.names == [NAME]
    mark = tmp_path / "storage" / mark_of(NAME)
    long_ago = time.time() - suitecache_entries.MARK_SECONDS - 60
    os.utime(mark, (long_ago, long_ago))
    await other.look()
    assert other.names == []
    assert not mark.exists()


async def test_an_entry_that_is_being_made_or_used_is_not_dropped(
    platform: Platform, tmp_path: Path
) -> None:
    async with platform.scheduler() as scheduler:
        await stored(scheduler, tmp_path)
        await scheduler.submit(job())
        await scheduler.submit(job())
        claimed = await scheduler.claim(claim_of(want=1))
        (assignment,) = claimed.assignments
        assert await scheduler.hold(assignment.lease, f"suitecache/{NAME}")
        with refused("entry_in_use", kind=Conflict):
            await scheduler.entries.drop(NAME)
        ending = WELL.model_copy(update={"result": built(tree=NAME)})
        assert await scheduler.finish(assignment.lease, ending)
        assert (await scheduler.entries.drop(NAME)).name == NAME


async def test_what_is_not_there_cannot_be_dropped(platform: Platform) -> None:
    async with platform.scheduler() as scheduler:
        with refused("entry_not_found", kind=NotFound):
            await scheduler.entries.drop(NAME)


async def test_a_worker_removes_what_nobody_uses_and_tells_what_is_left() -> None:
    class Kept:
        """A host's entries, one of which is in use."""

        names = ["used", "unused"]

        def held(self) -> list[HeldEntry]:
            return [HeldEntry(name=name, bytes=1) for name in self.names]

        def drop(self, names: list[str]) -> list[str]:
            gone = [name for name in names if name != "used" and name in self.names]
            self.names = [name for name in self.names if name not in gone]
            return gone

    entries = HeldEntries(Kept())  # type: ignore[arg-type]
    assert await entries.news() is not None
    await entries.drop(["used", "unused"])
    assert [entry.name for entry in await entries.news() or []] == ["used"]
