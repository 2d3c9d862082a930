"""Answers shared by many readers: each is queried once per period, however many want it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from kgym import tasks

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Kept:
    asking: asyncio.Task[Any]
    stale_at: float
    """Monotonic time."""


class SharedAnswers:
    """Cache of answers by key, each with a period of its own. Errors are cached, too."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    async def get(
        self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return an answer at most `seconds` old; raise as `ask` does."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or (kept.stale_at <= now and kept.asking.done()):
            # Keys come from URLs, which anybody can make up, so expired ones are dropped at once.
            self._kept = {
                other: answer
                for other, answer in self._kept.items()
                if answer.stale_at > now or not answer.asking.done()
            }
            kept = self._kept[key] = _Kept(asyncio.ensure_future(_asked(ask)), now + seconds)
        # Shielded: the first reader may disconnect while others wait for the same answer.
        answer: Answer = await asyncio.shield(kept.asking)
        return answer

    async def close(self) -> None:
        """Cancel all queries."""
        await tasks.end(kept.asking for kept in self._kept.values())


async def _asked(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    return await ask()
