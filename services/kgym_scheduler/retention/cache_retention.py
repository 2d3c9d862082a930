"""Retention of what is stored for all jobs: SuiteCache entries, memos, sources, toolchain images.

All can be made again, so the database is not involved. The age of an entry or image counts from
when a worker last fetched it, that of a memo from when it was made or last used for a result with
artifacts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from kgym.api.storage import OldEntry
from kgym.transport.artifact_storage import Storage

# Prefixes in storage, and how many names below each is the folder of one item.
_FOLDERS = {"suitecache": 1, "memo": 2, "source": 1, "toolchains": 1}


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Limits on age and size of entries and memos."""

    age: timedelta = timedelta(days=90)
    budget: int = 100 << 30
    """Bytes; beyond them, the least recently used are removed."""


async def old_entries(storage: Storage, policy: CachePolicy) -> list[OldEntry]:
    """Return what to remove."""
    sizes: dict[str, int] = {}
    ages: dict[str, float] = {}
    for prefix, depth in _FOLDERS.items():
        sizes |= await storage.sizes(prefix, depth)
        ages |= await storage.ages(prefix, depth)
    total = sum(sizes.values())
    old = []
    for prefix in sorted(ages, key=lambda prefix: -ages[prefix]):
        is_old = ages[prefix] > policy.age.total_seconds()
        if is_old or total > policy.budget:
            size = sizes.get(prefix, 0)
            total -= size
            old.append(OldEntry(prefix=prefix, bytes=size, why="age" if is_old else "budget"))
    return old


async def remove_entries(storage: Storage, old: Sequence[OldEntry]) -> None:
    """Remove these items. A worker that is fetching one makes it again."""
    for entry in old:
        await storage.remove(entry.prefix)
