"""Deletes what has outlived its attempt, or its time: VMs and images of workers that were killed.

The service itself deletes each VM at the end of its longest run (`max_run_duration`). This comes
sooner: where the scheduler says that the attempt has ended, for which it was made, or its deadline
has passed by this host's clock. What is of no attempt that the scheduler knows may be another
platform's in the same project, and lasts until its deadline.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from uuid import UUID

from kgym.errors import InfrastructureError, KgymError
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.instance_name import DEADLINE, is_over, lease_of
from kgym_vmmanager.gce.options import GceOptions

EVERY_SECONDS = 120.0
GRACE_SECONDS = 300.0
"""So much hosts' clocks may differ."""

Ended = Callable[[UUID], Awaitable[bool]]
"""Whether the attempt of a lease has ended; may raise KgymError."""
_Look = Callable[[], Awaitable[list[Any]]]
_Delete = Callable[[str], Awaitable[None]]
_log = logging.getLogger(__name__)


async def sweep(
    compute: Compute,
    options: GceOptions,
    ended: Ended | None = None,
    grace: float = GRACE_SECONDS,
) -> list[str]:
    """Delete what has this owner's label, and whose lease or deadline is over; return the names.

    What cannot be looked through, or deleted, is told, and keeps nobody from the rest.
    """

    async def kernels() -> list[Any]:
        found = await compute.labelled_images(options.owner)
        return [one for one in found if DEADLINE in one.labels]  # the helper has none, and stays

    ways: list[tuple[_Look, _Delete]] = [
        (partial(compute.labelled, zone, options.owner), partial(compute.delete, zone))
        for zone in options.zones
    ]
    ways.append((kernels, compute.delete_image))
    known: dict[UUID, bool] = {}

    async def lease_is_over(marks: dict[str, str]) -> bool:
        lease = lease_of(marks)
        if lease is None or ended is None:
            return False
        if lease not in known:
            known[lease] = False
            with contextlib.suppress(KgymError):  # an older scheduler; or it is away for now
                known[lease] = await ended(lease)
        return known[lease]

    swept = []
    for look, delete in ways:
        with _told():
            for one in await look():
                marks = dict(one.labels)
                if is_over(marks, time.time(), grace) or await lease_is_over(marks):
                    with _told():
                        await delete(one.name)
                        swept.append(one.name)
    return swept


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except InfrastructureError as error:
        _log.warning("what has outlived its time cannot be deleted: %s", error)


@asynccontextmanager
async def sweeping(
    compute: Compute, options: GceOptions, ended: Ended | None
) -> AsyncIterator[None]:
    """Sweep again and again while the context lasts."""

    async def run() -> None:
        while True:
            for name in await sweep(compute, options, ended):
                _log.warning("%s had outlived its time, and is deleted", name)
            await asyncio.sleep(EVERY_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
