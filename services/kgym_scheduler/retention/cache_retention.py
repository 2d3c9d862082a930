"""What is stored for all jobs, and for how long: SuiteCache entries, memos, toolchain images.

All can be made again, so nothing has to be told to the database. An entry's
or image's age counts from when a worker last fetched it, a memo's from its last use for a
result with artifacts, or from when it was made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from kgym.api.steps import Strict
from kgym.transport.artifact_storage import Storage

# Where they are stored, and so many names below it is a folder for each.
_FOLDERS = {"suitecache": 1, "memo": 2, "source": 1, "toolchains": 1}


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How long entries and memos are kept."""

    age: timedelta = timedelta(days=90)
    budget: int = 100 << 30
    """Bytes; beyond it those that were not used for longest go."""


class OldEntry(Strict):
    """An entry or memo to remove, and why."""

    prefix: str
    bytes: int
    why: Literal["age", "budget"]


async def old_entries(storage: Storage, policy: CachePolicy) -> list[OldEntry]:
    """Return the entries and memos to remove."""
    sizes: dict[str, int] = {}
    ages: dict[str, float] = {}
    for prefix, depth in _FOLDERS.items():
        sizes |= await storage.sizes(prefix, depth)
        ages |= await storage.ages(prefix, depth)
    total = sum(sizes.values())
    found = []
    for prefix in sorted(ages, key=lambda prefix: -ages[prefix]):
        old = ages[prefix] > policy.age.total_seconds()
        if old or total > policy.budget:
            size = sizes.get(prefix, 0)
            total -= size
            found.append(OldEntry(prefix=prefix, bytes=size, why="age" if old else "budget"))
    return found


async def remove_entries(storage: Storage, found: Sequence[OldEntry]) -> None:
    """Remove them; a worker that fetches one at this moment makes it again."""
    for one in found:
        await storage.remove(one.prefix)
