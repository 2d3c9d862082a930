"""SuiteCache's entries on a worker's host: report changes to the scheduler, remove dropped ones."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from kgym.api.suitecache import HELD, HeldEntry

# Interval of listing the entries.
LIST_SECONDS = 10.0
# Interval of reporting them unchanged: the scheduler may have lost them.
REPORT_SECONDS = 600.0

_log = structlog.get_logger()


class KeepsEntries(Protocol):
    """The entries on a host's disk. Both calls block, and raise OSError."""

    def held(self) -> list[HeldEntry]:
        """Return the entries on the disk."""

    def drop(self, names: Sequence[str]) -> list[str]:
        """Remove these entries unless they are in use; return the names of the removed ones."""


class HeldEntries:
    """The entries in `kept`, as a worker reports them with its claims.

    Workers report them because the storage knows only its own entries. Only the host itself knows
    which ones it has fetched and not yet evicted.
    """

    def __init__(self, kept: KeepsEntries) -> None:
        self._kept = kept
        self._listed_at = self._reported_at = -REPORT_SECONDS
        self._reported: list[HeldEntry] | None = None

    async def news(self) -> list[HeldEntry] | None:
        """Return the entries if a report is due, at most HELD, the largest; else None."""
        now = time.monotonic()
        if now < self._listed_at + LIST_SECONDS:
            return None
        self._listed_at = now
        try:
            held = await asyncio.to_thread(self._kept.held)
        except OSError as error:  # other processes create and remove entries meanwhile
            _log.warning("entries of SuiteCache cannot be listed", error=str(error))
            return None
        held = sorted(held, key=lambda entry: (-entry.bytes, entry.name))[:HELD]
        is_recent = now < self._reported_at + REPORT_SECONDS
        return None if held == self._reported and is_recent else held

    async def drop(self, names: Sequence[str]) -> None:
        """Remove dropped entries. An entry in use stays: the scheduler will ask for it again."""
        try:
            gone = await asyncio.to_thread(self._kept.drop, names)
        except OSError as error:
            _log.warning("dropped entries cannot be removed", error=str(error))
            return
        if gone:
            _log.info("dropped entries removed", entries=gone)
            self._listed_at = -REPORT_SECONDS

    def delivered(self, entries: list[HeldEntry]) -> None:
        """Note that the scheduler has received this report."""
        self._reported, self._reported_at = entries, time.monotonic()
