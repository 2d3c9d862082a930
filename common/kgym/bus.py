"""The message bus: one queue per step kind, and signals that reach every worker.

A message only says "look at this step"; the database is the truth. So a lost
message costs a sweep's delay and a doubled one a refused claim, never a job.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from kgym.steps import StepKind


@dataclass(frozen=True, slots=True)
class Message:
    """Look at this step: it is queued."""

    step_id: int
    kind: StepKind
    priority: int = 0
    """Of the job; higher is sooner."""


class Delivery(Protocol):
    """A message as a worker gets it; unacknowledged, it is delivered again."""

    @property
    def message(self) -> Message:
        """What was published."""
        ...

    async def ack(self) -> None:
        """Take it off the queue."""
        ...

    async def nack(self) -> None:
        """Put it back for another worker, or for later."""
        ...


class Bus(Protocol):
    """What RabbitMQ does between hosts and InProcessBus within one process."""

    async def publish(self, message: Message) -> None:
        """Return once the bus has taken responsibility for the message."""
        ...

    def consume(self, kind: StepKind) -> AsyncIterator[Delivery]:
        """Take messages of this kind, one at a time."""
        ...

    async def signal(self, lease: UUID) -> None:
        """Tell every worker that this lease is gone: what runs under it has to end."""
        ...

    def signals(self) -> AbstractAsyncContextManager[AsyncIterator[UUID]]:
        """Yield the leases that are gone, from the start of the context on."""
        ...


class _Queue:
    """Messages of one kind: those of higher priority first, then in order of publication."""

    def __init__(self) -> None:
        self._messages = asyncio.PriorityQueue[tuple[int, int, Message]]()
        self._numbers = itertools.count()

    def put(self, message: Message) -> None:
        self._messages.put_nowait((-message.priority, next(self._numbers), message))

    async def get(self) -> Message:
        _, _, message = await self._messages.get()
        return message


@dataclass(frozen=True, slots=True)
class _Delivery:
    message: Message
    queue: _Queue

    async def ack(self) -> None:
        """Nothing is left to do: the queue gave the message away."""

    async def nack(self) -> None:
        self.queue.put(self.message)


class InProcessBus:
    """Queues in memory, for the embedded platform. What is lost with the process is swept up."""

    def __init__(self) -> None:
        self._queues = {kind: _Queue() for kind in StepKind}
        self._listeners: set[asyncio.Queue[UUID]] = set()

    async def publish(self, message: Message) -> None:
        """Put it into the queue of its kind."""
        self._queues[message.kind].put(message)

    async def consume(self, kind: StepKind) -> AsyncIterator[Delivery]:
        """Take messages by priority, then in the order of their publication."""
        queue = self._queues[kind]
        while True:
            yield _Delivery(await queue.get(), queue)

    async def signal(self, lease: UUID) -> None:
        """Hand the lease to every listener."""
        for listener in self._listeners:
            listener.put_nowait(lease)

    @asynccontextmanager
    async def signals(self) -> AsyncIterator[AsyncIterator[UUID]]:
        """Listen until the context ends."""
        queue = asyncio.Queue[UUID]()

        async def stream() -> AsyncIterator[UUID]:
            while True:
                yield await queue.get()

        self._listeners.add(queue)
        try:
            yield stream()
        finally:
            self._listeners.discard(queue)
