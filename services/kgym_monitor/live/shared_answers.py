"""Answers of the scheduler that all pages show alike: asked for once, while nothing changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kgym_monitor.live.changes import Changes

FRESH_SECONDS = 2.0
"""How long an answer is shown while nothing changes: ages and heartbeats are that old, then."""

Answer = TypeVar("Answer")


class SharedAnswer(Generic[Answer]):
    """One of them, as it was after the last change that was heard of."""

    def __init__(self, changes: Changes, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._changes = changes
        self._ask = ask
        self._asking = asyncio.Lock()
        self._told: Answer | None = None
        self._position = -1
        """That of the changes when the answer was asked for."""
        self._read_at = float("-inf")
        """When it was asked for, by the monotonic clock."""

    async def read(self) -> Answer:
        """Return the answer; raises KgymError as the client does."""
        async with self._asking:
            position, now = self._changes.position, time.monotonic()
            old = now - self._read_at >= FRESH_SECONDS or position != self._position
            if self._told is None or old:
                self._told = await self._ask()
                self._position, self._read_at = position, now
            return self._told
