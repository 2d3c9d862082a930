"""Answers that many readers share: each is asked for once in a while, however many want it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Kept:
    asking: asyncio.Task[Any]
    stale_at: float
    """By the monotonic clock."""


class SharedAnswers:
    """Answers by key, each kept for a time of its own; a refusal is an answer, too."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    async def get(
        self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return an answer that was asked for at most `seconds` ago; raise what `ask` raises."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or (kept.stale_at <= now and kept.asking.done()):
            # Keys come from addresses, which anybody may make up: nothing stays longer than needed.
            self._kept = {
                other: it
                for other, it in self._kept.items()
                if it.stale_at > now or not it.asking.done()
            }
            kept = self._kept[key] = _Kept(asyncio.ensure_future(_asked(ask)), now + seconds)
        # The reader who came first may leave; the others still wait for the answer.
        answer: Answer = await asyncio.shield(kept.asking)
        return answer

    async def close(self) -> None:
        """Stop asking."""
        tasks = [kept.asking for kept in self._kept.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _asked(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    return await ask()
