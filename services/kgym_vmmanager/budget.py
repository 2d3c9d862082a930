"""What a host has for VMs, shared by the steps that run at the same time."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator

OVERHEAD_MIB = 384
"""What a QEMU takes beyond the guest's memory: mostly translated code, bounded at 256 MiB."""


class Budget:
    """CPUs, and memory in MiB. Who asks first is served first."""

    def __init__(self, cpus: int, memory: int) -> None:
        self.cpus = self._free_cpus = cpus
        self.memory = self._free_memory = memory
        self._waiting: deque[tuple[int, int, asyncio.Event]] = deque()

    @classmethod
    def of_host(cls) -> "Budget":
        """Return all of the host's CPUs and four fifths of its memory."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        return cls(len(os.sched_getaffinity(0)), memory * 4 // 5)

    @contextlib.asynccontextmanager
    async def share(self, cpus: int, memory: int) -> AsyncIterator[None]:
        """Wait until the host has room for one more VM, and hold it; one VM always fits."""
        cpus = min(cpus, self.cpus)
        memory = min(memory + OVERHEAD_MIB, self.memory)
        turn = asyncio.Event()
        entry = (cpus, memory, turn)
        self._waiting.append(entry)
        self._admit()
        try:
            await turn.wait()
            yield
        finally:
            if turn.is_set():
                self._free_cpus += cpus
                self._free_memory += memory
            else:
                self._waiting.remove(entry)
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            cpus, memory, turn = self._waiting[0]
            if cpus > self._free_cpus or memory > self._free_memory:
                return
            self._waiting.popleft()
            self._free_cpus -= cpus
            self._free_memory -= memory
            turn.set()
