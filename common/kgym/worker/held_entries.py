"""Which entries of SuiteCache a worker's host keeps, as far as the scheduler does not know it."""

import asyncio
import time
from collections.abc import Callable

import structlog

from kgym.api.suitecache import HELD, HeldEntry

LOOK_SECONDS = 10.0
"""How often to look."""
TELL_SECONDS = 600.0
"""How often to tell what has not changed: the scheduler may have forgotten it."""

_log = structlog.get_logger()


class HeldEntries:
    """What a worker has to tell of them; `look` is called in a thread."""

    def __init__(self, look: Callable[[], list[HeldEntry]]) -> None:
        self._look = look
        self._looked_at = self._told_at = -TELL_SECONDS
        self._told: list[HeldEntry] | None = None

    async def news(self) -> list[HeldEntry] | None:
        """Return the entries if they have to be told, the largest of many; else None."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_SECONDS:
            return None
        self._looked_at = now
        try:
            held = await asyncio.to_thread(self._look)
        except OSError as error:  # others make and remove entries meanwhile
            _log.warning("entries of SuiteCache cannot be listed", error=str(error))
            return None
        held = sorted(held, key=lambda one: (-one.bytes, one.name))[:HELD]
        return None if held == self._told and now < self._told_at + TELL_SECONDS else held

    def heard(self, told: list[HeldEntry]) -> None:
        """Note that the scheduler knows this."""
        self._told, self._told_at = told, time.monotonic()
