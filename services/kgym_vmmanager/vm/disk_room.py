"""Disk space for VMs: a bound for each, and reservations for all VMs of a worker."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from kgym.errors import InfrastructureError

# Bytes that a guest may write to its root disk, or the disk's size if that is smaller.
MOST_WRITTEN = 8 << 30
# Bytes of the host's disk that always stay free.
SPARE = 256 << 20
_TABLES = 16 << 20
_POLL_SECONDS = 0.5


def overlay_bytes(disk: int) -> int:
    """Return the maximum bytes of the overlay with a guest's writes to a `disk` of this size."""
    # The overlay is a qcow2, whose tables take less than a thousandth of the data.
    data = min(disk, MOST_WRITTEN)
    return data + data // 1000 + _TABLES


class DiskRoom:
    """Reservations on the host's disk by the VMs of one worker: first come, first served."""

    def __init__(self) -> None:
        self._held = 0
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def held(self, folder: Path, most: int) -> AsyncIterator[None]:
        """Reserve `most` bytes in the folder; wait while other VMs hold them.

        Raises InfrastructureError `disk_full` if they do not fit even without other VMs.
        """
        async with self._turn:
            while (free := shutil.disk_usage(folder).free - self._held) < most + SPARE:
                if not self._held:
                    raise InfrastructureError(
                        "disk_full",
                        f"a VM may write {most >> 20:,} MiB to {folder}, and {SPARE >> 20} MiB are"
                        f" to be left; {free >> 20:,} MiB are free: free some space",
                    )
                # Bytes that running VMs have written are counted twice until they end: as held, and
                # as no longer free. That errs on the safe side.
                await asyncio.sleep(_POLL_SECONDS)
            self._held += most
        try:
            yield
        finally:
            self._held -= most
