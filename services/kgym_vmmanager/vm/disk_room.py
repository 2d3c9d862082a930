"""What the VMs of a host may write to its disk: each of them to a bound, and all together."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from kgym.errors import InfrastructureError

# Bytes that a guest may write to its root disk; to a smaller one as many as it has.
MOST_WRITTEN = 8 << 30
# What is left free.
SPARE = 256 << 20
_TABLES = 16 << 20
_POLL_SECONDS = 0.5


def overlay_bytes(disk: int) -> int:
    """Return how large the file may become that takes a guest's writes to a disk of these bytes.

    It is a qcow2: its tables come to less than a thousandth.
    """
    data = min(disk, MOST_WRITTEN)
    return data + data // 1000 + _TABLES


class DiskRoom:
    """The room on the host's disk, as the VMs of one worker share it. Who asks first is first."""

    def __init__(self) -> None:
        self._held = 0
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def held(self, folder: Path, most: int) -> AsyncIterator[None]:
        """Wait until `most` bytes can be written in the folder besides all that is held.

        Raises InfrastructureError `disk_full` if they cannot while nothing is held.
        """
        async with self._turn:
            while (free := shutil.disk_usage(folder).free - self._held) < most + SPARE:
                if not self._held:
                    raise InfrastructureError(
                        "disk_full",
                        f"a VM may write {most >> 20:,} MiB to {folder}, and {SPARE >> 20} MiB are"
                        f" to be left; {free >> 20:,} MiB are free: free some space",
                    )
                # What running VMs have written counts twice until they end.
                await asyncio.sleep(_POLL_SECONDS)
            self._held += most
        try:
            yield
        finally:
            self._held -= most
