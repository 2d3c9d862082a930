"""The message bus: one queue of notices per kind of step, and signals to all workers.

A notice only says that a step of this kind is queued; the claim selects the step, in the
database, which is the truth. So a lost notice costs seconds (idle workers claim without one), and
a duplicate an empty claim, but never a job.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from kgym.api.steps import StepKind


class Delivery(Protocol):
    """A delivered notice; if it is not acknowledged, it is delivered again."""

    @property
    def kind(self) -> StepKind:
        """The kind of the queued step."""

    async def ack(self) -> None:
        """Remove the notice from the queue: its claim has been answered."""

    async def nack(self) -> None:
        """Return the notice to the queue, for another worker."""


class Bus(Protocol):
    """A message bus: RabbitMQ between hosts, InProcessBus within one process.

    Each method raises InfrastructureError if the bus cannot be reached.
    """

    async def publish(self, kind: StepKind) -> None:
        """Send a notice to one worker of this kind; return once the bus has stored it."""

    def consume(
        self, kinds: Collection[StepKind]
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Context manager: receive notices of these kinds, across lost connections.

        A worker leaves the context while it has no free slot: notices that it has not
        acknowledged by then are delivered to others.
        """

    @property
    def notifies(self) -> bool:
        """Whether notices sent now will arrive. If not, workers have to poll."""

    async def signal(self, lease: UUID) -> None:
        """Tell every worker that this lease was revoked, so that its attempt ends."""

    def signals(self) -> AbstractAsyncContextManager[AsyncIterator[UUID]]:
        """Context manager: receive leases that are revoked from now on."""


class InProcessBus:
    """Notices in memory, for the embedded platform. The scheduler's sweep repeats lost ones."""

    def __init__(self) -> None:
        self._notifications = dict.fromkeys(StepKind, 0)
        self._sent = asyncio.Condition()
        self._listeners: set[asyncio.Queue[UUID]] = set()

    @property
    def notifies(self) -> bool:
        """False: the publisher may be in another process."""
        return False

    async def publish(self, kind: StepKind) -> None:
        """Notify the first consumer."""
        async with self._sent:
            self._notifications[kind] += 1
            self._sent.notify_all()

    @asynccontextmanager
    async def consume(self, kinds: Collection[StepKind]) -> AsyncIterator[AsyncIterator[Delivery]]:
        """Context manager: receive notices of these kinds."""
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
        """Pass the lease to every listener."""
        for listener in self._listeners:
            listener.put_nowait(lease)

    @asynccontextmanager
    async def signals(self) -> AsyncIterator[AsyncIterator[UUID]]:
        """Context manager: receive revoked leases."""
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
        """Do not return the notice to the queue, from which it was removed on receipt."""
        if self in self.held:
            self.held.remove(self)

    async def nack(self) -> None:
        if self in self.held:
            self.held.remove(self)
            await self.bus.publish(self.kind)
