"""The message bus: one queue of notifications per step kind, and signals that reach every worker.

A notification only says "there is work of this kind"; which step that is, the claim
decides, in the database, which is the truth. So a lost notification costs seconds (an
idle worker asks by itself) and a doubled one an empty claim, never a job.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from kgym.api.steps import StepKind


class Delivery(Protocol):
    """A notification as a worker gets it; unacknowledged, it is delivered again."""

    @property
    def kind(self) -> StepKind:
        """The kind of step that waits."""
        ...

    async def ack(self) -> None:
        """Take it off the queue: the claim that it led to has been answered."""
        ...

    async def nack(self) -> None:
        """Put it back, for another worker."""
        ...


class Bus(Protocol):
    """What RabbitMQ does between hosts and InProcessBus within one process.

    Each method raises InfrastructureError where the bus cannot be reached.
    """

    async def publish(self, kind: StepKind) -> None:
        """Notify one worker of this kind; return once the bus is responsible for that."""
        ...

    def consume(
        self, kinds: Collection[StepKind]
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive notifications of these kinds in the context, across lost connections.

        A worker leaves the context while it has no free slot: what it has not
        acknowledged by then is delivered again, to others.
        """
        ...

    @property
    def notifies(self) -> bool:
        """Whether notifications that are sent now are sure to arrive; else, ask by yourself."""
        ...

    async def signal(self, lease: UUID) -> None:
        """Tell every worker that this lease is gone: what runs under it has to end."""
        ...

    def signals(self) -> AbstractAsyncContextManager[AsyncIterator[UUID]]:
        """Yield the leases that are gone, from the start of the context on."""
        ...


class InProcessBus:
    """Notifications in memory, for the embedded platform. A sweep makes up for lost ones."""

    def __init__(self) -> None:
        self._notifications = dict.fromkeys(StepKind, 0)
        self._sent = asyncio.Condition()
        self._listeners: set[asyncio.Queue[UUID]] = set()

    @property
    def notifies(self) -> bool:
        """No: who publishes may be in another process."""
        return False

    async def publish(self, kind: StepKind) -> None:
        """Notify whoever asks first."""
        async with self._sent:
            self._notifications[kind] += 1
            self._sent.notify_all()

    @asynccontextmanager
    async def consume(self, kinds: Collection[StepKind]) -> AsyncIterator[AsyncIterator[Delivery]]:
        """Receive the notifications of these kinds until the context ends."""
        held: list[_Delivery] = []

        async def stream() -> AsyncIterator[Delivery]:
            while True:
                held.append(_Delivery(await self._take(kinds), self, held))
                yield held[-1]

        try:
            yield stream()
        finally:
            for delivery in list(held):
                await delivery.nack()

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

    async def _take(self, kinds: Collection[StepKind]) -> StepKind:
        async with self._sent:
            await self._sent.wait_for(lambda: any(self._notifications[kind] for kind in kinds))
            kind = next(kind for kind in kinds if self._notifications[kind])
            self._notifications[kind] -= 1
            return kind


@dataclass(frozen=True, slots=True, eq=False)
class _Delivery:
    kind: StepKind
    bus: InProcessBus
    held: "list[_Delivery]"

    async def ack(self) -> None:
        """The notification was taken off when it was received; do not put it back."""
        if self in self.held:
            self.held.remove(self)

    async def nack(self) -> None:
        if self in self.held:
            self.held.remove(self)
            await self.bus.publish(self.kind)
