"""Group commit: calls that come while a transaction is under way share the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from kgym.errors import Conflict, InfrastructureError

LIMIT = 200
"""Calls in one transaction."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batch(Generic[Item, Answer]):
    """Calls `work` with all items that wait, one time after the other.

    `work` answers each item with its result or its error. What it raises ends
    the whole transaction, and nobody knows by whose fault: so the halves are
    tried, and theirs, until the culprit is alone, and the others are done. A
    part of the platform that fails is nobody's fault, and fails them all.
    """

    def __init__(
        self, work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]]
    ) -> None:
        self._work = work
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Answer:
        """Return the item's result, or raise its error."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Wait until no work is under way."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def _run(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(LIMIT, len(self._waiting)))]
            answers = await self._answers([item for item, _ in taken])
            for (_, future), answer in zip(taken, answers, strict=True):
                if future.cancelled():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    async def _answers(self, items: Sequence[Item]) -> Sequence[Answer | Exception]:
        try:
            return await self._work(items)
        except InfrastructureError as error:
            return [error] * len(items)
        except Exception as error:  # noqa: BLE001 - those who wait raise it
            if len(items) == 1:
                return [await self._again(items[0]) if isinstance(error, Conflict) else error]
        half = len(items) // 2
        return [*await self._answers(items[:half]), *await self._answers(items[half:])]

    async def _again(self, item: Item) -> Answer | Exception:
        """Try an item once more: what it raced with, a twin of its own maybe, is committed now."""
        try:
            return (await self._work([item]))[0]
        except Exception as error:  # noqa: BLE001 - who waits raises it
            return error
