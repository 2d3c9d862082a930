"""Messages to workers, sent beside the requests that lead to them.

A notice goes to a worker that is connected here and has room, else on the bus. Nobody waits
for the bus: where it is away, idle workers ask by themselves within a second, and heartbeats
learn which leases are gone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

import structlog

from kgym.api.steps import StepKind
from kgym.errors import InfrastructureError
from kgym.transport.bus import Bus
from kgym_scheduler.idle_workers import IdleWorkers

SIGNALS = 10_000
"""Leases that wait to be told; of more, the oldest are left to the heartbeats."""

_log = structlog.get_logger()


class Notifier:
    """Sends notifications and signals, while `run` does. Those of one kind that wait are one."""

    def __init__(self, bus: Bus, take_back: Callable[[UUID], None]) -> None:
        self._bus = bus
        self.idle_workers = IdleWorkers(self.publish, take_back)
        self._kinds: dict[StepKind, None] = {}
        self._leases = deque[UUID](maxlen=SIGNALS)
        self._news = asyncio.Event()

    def notify(self, kinds: Iterable[StepKind]) -> None:
        """Wake a worker of each of these kinds."""
        self.publish([kind for kind in kinds if not self.idle_workers.ring(kind)])

    def publish(self, kinds: Iterable[StepKind]) -> None:
        """Wake a worker of each of these kinds, whichever scheduler it is connected to."""
        self._kinds |= dict.fromkeys(kinds)
        if self._kinds:
            self._news.set()

    def stop(self, leases: Iterable[UUID]) -> None:
        """Tell whoever works under these leases that they are gone."""
        self._leases.extend(leases)
        if self._leases:
            self._news.set()

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._send()
            except InfrastructureError as error:
                _log.warning("nothing said on the bus", error=str(error))

    async def _send(self) -> None:
        while self._leases:
            await self._bus.signal(self._leases.popleft())
        kinds, self._kinds = self._kinds, {}
        for kind in kinds:
            await self._bus.publish(kind)
