"""Messages to workers on the bus, sent in the background.

No request waits for the bus: while it is away, idle workers claim by themselves every second,
and heartbeats learn which leases are gone.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from uuid import UUID

import structlog

from kgym.api.steps import StepKind
from kgym.errors import InfrastructureError
from kgym.transport.bus import Bus

# Leases to signal that are kept; of more, the oldest are left to the heartbeats.
SIGNALS = 10_000

_log = structlog.get_logger()


class Notifier:
    """Sends notifications and signals while `run` runs; unsent ones of one kind become one."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kinds: dict[StepKind, None] = {}
        self._leases = deque[UUID](maxlen=SIGNALS)
        self._news = asyncio.Event()

    def notify(self, kinds: Iterable[StepKind]) -> None:
        """Wake a worker of each of these kinds."""
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
