"""Detection of dead workers: their connection ends, and they stop reporting.

Each worker keeps a request open as long as it lives. The kernel closes the connections of a
killed process, but not those of one that is paused or cut off from the network.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import structlog

from kgym.api.worker_calls import LOST_SECONDS
from kgym.errors import KgymError
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.job_change import Changed

# Delay from a lease's end until expired leases are looked up, which happens only once.
MARGIN_SECONDS = 0.1

_log = structlog.get_logger()


class DeadWorkers:
    """Ends the leases of workers whose connection has ended, unless they report."""

    def __init__(self, store: JobStore, announce: Callable[[Changed], object]) -> None:
        self._store = store
        self._announce = announce
        # Open connections by worker: their end is the first sign of its death.
        self.connected = Counter[str]()
        self._losses: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def watch(self, worker: str) -> Iterator[asyncio.Event]:
        """When the context ends, end the worker's leases unless it reports within LOST_SECONDS.

        The leases stay if the worker has another connection, or if this scheduler stops. In the
        latter case, the yielded event is set.
        """
        self.connected[worker] += 1
        try:
            yield self._stopping
        finally:
            self.connected[worker] -= 1
            if not self.connected[worker]:
                del self.connected[worker]
                if not self._stopping.is_set():
                    loss = asyncio.create_task(self._lost(worker))
                    self._losses.add(loss)
                    loss.add_done_callback(self._losses.discard)

    def hang_up(self) -> None:
        """End no more leases: connections now end because this scheduler stops."""
        self._stopping.set()

    async def stop(self) -> None:
        """Leave shortened leases to the sweeps of other schedulers."""
        self.hang_up()
        losses = list(self._losses)
        for loss in losses:
            loss.cancel()
        await asyncio.gather(*losses, return_exceptions=True)

    async def _lost(self, worker: str) -> None:
        """Shorten the leases of a worker whose connection has ended, then end them."""
        # A report extends a shortened lease to its full time. If this scheduler dies meanwhile, the
        # sweep of another finds the shortened leases.
        _log.info("connection of a worker lost", worker=worker)
        try:
            await self._store.shorten(worker)
            await asyncio.sleep(LOST_SECONDS + MARGIN_SECONDS)
            for changed in await self._store.expire(worker):
                self._announce(changed)
        except KgymError as error:  # its leases end at their usual time
            _log.warning("leases not shortened", worker=worker, error=str(error))
