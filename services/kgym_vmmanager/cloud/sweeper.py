"""Deletes cloud resources that have outlived their attempt: VMs and images of killed workers.

The cloud itself may delete a VM at the end of its longest run. The sweeper comes sooner: as soon as
the scheduler reports that the attempt has ended, or the deadline has passed by this host's clock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from kgym.errors import InfrastructureError, KgymError
from kgym_vmmanager.cloud.labels import is_over, lease_of

EVERY_SECONDS = 120.0
# The most by which the clocks of two hosts are expected to differ.
GRACE_SECONDS = 300.0

# Whether the attempt of a lease has ended; may raise KgymError.
HasEnded = Callable[[UUID], Awaitable[bool]]
_log = logging.getLogger(__name__)


class Labelled(Protocol):
    """A VM or an image, as a cloud lists it."""

    @property
    def name(self) -> str:
        """The name by which it is deleted."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels (see `kgym_vmmanager.cloud.labels`)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """One kind of a platform's resources in one place: how they are listed, and deleted by name."""

    list: Callable[[], Awaitable[Iterable[Labelled]]]
    delete: Callable[[str], Awaitable[None]]


async def sweep(
    owned: Iterable[Resources], has_ended: HasEnded | None = None, grace: float = GRACE_SECONDS
) -> list[str]:
    """Delete the resources whose lease or deadline is over; return their names.

    A failure to list or delete is logged, and does not keep others from being deleted.
    """
    known: dict[UUID, bool] = {}

    async def lease_is_over(labels: Mapping[str, str]) -> bool:
        lease = lease_of(labels)
        if lease is None or has_ended is None:
            return False
        if lease not in known:
            # An unknown lease may be another platform's in the same project, or the scheduler may
            # be away: such a resource lasts until its deadline.
            known[lease] = False
            with contextlib.suppress(KgymError):
                known[lease] = await has_ended(lease)
        return known[lease]

    swept = []
    for resources in owned:
        with _failures_logged():
            for resource in await resources.list():
                labels = dict(resource.labels)
                if is_over(labels, time.time(), grace) or await lease_is_over(labels):
                    with _failures_logged():
                        await resources.delete(resource.name)
                        swept.append(resource.name)
    return swept


@contextmanager
def _failures_logged() -> Iterator[None]:
    try:
        yield
    except InfrastructureError as error:
        _log.warning("an expired resource was not deleted: %s", error)


@asynccontextmanager
async def sweeping(owned: Iterable[Resources], has_ended: HasEnded | None) -> AsyncIterator[None]:
    """Sweep every two minutes while the context lasts."""

    async def run() -> None:
        while True:
            for name in await sweep(owned, has_ended):
                _log.warning("deleted %s, which had outlived its attempt or its deadline", name)
            await asyncio.sleep(EVERY_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
