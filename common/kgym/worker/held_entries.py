"""Which entries of SuiteCache a worker's host keeps: told, where the scheduler does not know it.

And removed, where it says that they were dropped.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from kgym.api.suitecache import HELD, HeldEntry

# How often to look.
LOOK_SECONDS = 10.0
# How often to tell what has not changed: the scheduler may have forgotten it.
TELL_SECONDS = 600.0

_log = structlog.get_logger()


class KeepsEntries(Protocol):
    """The entries on a host's disk. Both calls block, and raise OSError."""

    def held(self) -> list[HeldEntry]:
        """Return those that there are."""
        ...

    def drop(self, names: Sequence[str]) -> list[str]:
        """Remove those of these that nobody uses; return their names."""
        ...


class HeldEntries:
    """What a worker has to tell of the entries that `kept` has."""

    def __init__(self, kept: KeepsEntries) -> None:
        self._kept = kept
        self._looked_at = self._told_at = -TELL_SECONDS
        self._told: list[HeldEntry] | None = None

    async def news(self) -> list[HeldEntry] | None:
        """Return the entries if they have to be told, the largest of many; else None."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_SECONDS:
            return None
        self._looked_at = now
        try:
            held = await asyncio.to_thread(self._kept.held)
        except OSError as error:  # others make and remove entries meanwhile
            _log.warning("entries of SuiteCache cannot be listed", error=str(error))
            return None
        held = sorted(held, key=lambda one: (-one.bytes, one.name))[:HELD]
        return None if held == self._told and now < self._told_at + TELL_SECONDS else held

    async def drop(self, names: Sequence[str]) -> None:
        """Remove entries that were dropped; those in use go when this is said again."""
        try:
            gone = await asyncio.to_thread(self._kept.drop, names)
        except OSError as error:
            _log.warning("dropped entries cannot be removed", error=str(error))
            return
        if gone:
            _log.info("dropped entries removed", entries=gone)
            self._looked_at = -TELL_SECONDS

    def heard(self, told: list[HeldEntry]) -> None:
        """Note that the scheduler knows this."""
        self._told, self._told_at = told, time.monotonic()
