"""Deletes what has outlived its time: VMs of workers that were killed.

The service itself deletes each VM at the end of its longest run (`max_run_duration`). This comes
sooner where that was given up: a deadline has passed by the host's own clock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kgym.errors import InfrastructureError
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.instance_name import is_over
from kgym_vmmanager.gce.options import GceOptions

EVERY_SECONDS = 120.0
GRACE_SECONDS = 300.0
"""So much hosts' clocks may differ."""

_log = logging.getLogger(__name__)


async def sweep(compute: Compute, options: GceOptions, grace: float = GRACE_SECONDS) -> list[str]:
    """Delete the VMs with this owner's label whose deadline has passed; return their names."""
    swept = []
    for zone in options.zones:
        for one in await compute.labelled(zone, options.owner):
            if is_over(dict(one.labels), time.time(), grace):
                await compute.delete(zone, one.name)
                swept.append(one.name)
    return swept


@asynccontextmanager
async def sweeping(compute: Compute, options: GceOptions) -> AsyncIterator[None]:
    """Sweep again and again while the context lasts."""

    async def run() -> None:
        while True:
            try:
                for name in await sweep(compute, options):
                    _log.warning("the VM %s had outlived its time, and is deleted", name)
            except InfrastructureError as error:
                _log.warning("VMs cannot be looked through: %s", error)
            await asyncio.sleep(EVERY_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
