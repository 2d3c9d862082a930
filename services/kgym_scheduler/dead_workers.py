"""Who notices a dead worker: its connection ends, and nothing more is heard of it.

Each worker keeps a request open as long as it lives. The kernel closes the connections of a
process that is killed, and leaves open those of one that is paused, or cut off.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import structlog

from kgym.api.worker_calls import LOST_SECONDS
from kgym.errors import KgymError
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.job_changes import Changed

# By how much a lease has to be over that is looked at only once.
MARGIN_SECONDS = 0.1

_log = structlog.get_logger()


class DeadWorkers:
    """Takes the leases of workers whose connection has ended, unless they report."""

    def __init__(self, store: JobStore, tell: Callable[[Changed], object]) -> None:
        self._store = store
        self._tell = tell
        self._connected = Counter[str]()
        self._losses: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    @property
    def connected(self) -> set[str]:
        """The workers whose end would be noticed at once."""
        return set(self._connected)

    @contextlib.contextmanager
    def watch(self, worker: str) -> Iterator[asyncio.Event]:
        """Take the worker's leases if the context ends and nothing is heard of it in LOST_SECONDS.

        Not if it is connected once more by then, nor if this scheduler stops: then the event is
        set.
        """
        self._connected[worker] += 1
        try:
            yield self._stopping
        finally:
            self._connected[worker] -= 1
            if not self._connected[worker]:
                del self._connected[worker]
                if not self._stopping.is_set():
                    loss = asyncio.create_task(self._lost(worker))
                    self._losses.add(loss)
                    loss.add_done_callback(self._losses.discard)

    def hang_up(self) -> None:
        """Take no more leases: connections end now because this scheduler stops."""
        self._stopping.set()

    async def stop(self) -> None:
        """Leave the leases that were to be taken to other schedulers' sweep."""
        self.hang_up()
        losses = list(self._losses)
        for loss in losses:
            loss.cancel()
        await asyncio.gather(*losses, return_exceptions=True)

    async def _lost(self, worker: str) -> None:
        """Take the leases of a worker whose connection has ended, unless it reports.

        Each of its reports gives the lease its whole time again. If this scheduler ends
        meanwhile, the sweep of another finds the short leases.
        """
        _log.info("connection of a worker lost", worker=worker)
        try:
            await self._store.shorten(worker)
            await asyncio.sleep(LOST_SECONDS + MARGIN_SECONDS)
            for changed in await self._store.expire(worker):
                self._tell(changed)
        except KgymError as error:  # then its leases end as they would have
            _log.warning("leases not shortened", worker=worker, error=str(error))
