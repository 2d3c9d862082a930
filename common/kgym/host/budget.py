"""A host's cores and memory, shared by concurrent work: builds, checks, VMs."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

from kgym.host.resources import Host

# MiB of memory for one job of make: a compiler, or its share of a linker.
JOB_MIB = 512
_MIB = 1 << 20


class Use(StrEnum):
    """Kind of work. Work of one kind queues for cores; kinds share the cores by time slices."""

    BUILD = "build"
    CHECK = "check"
    VM = "vm"


@dataclass(frozen=True, slots=True)
class _Waiting:
    use: Use
    cores: int
    memory: int
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Budget:
    """Cores, and memory in MiB, granted in order of arrival.

    Each worker process has its own: replicas on one host do not know each other, so each container
    needs limits of its own (`resources.py` reads them).
    """

    def __init__(self, cores: int, memory: int) -> None:
        self.cores = cores
        # One account for all kinds of work: a lack of memory kills programs. A lack of cores only
        # slows them down; with one account, a check of a second would wait for a VM of minutes.
        self.memory = self._free_memory = memory
        self._used_cores: Counter[Use] = Counter()
        self._waiting: deque[_Waiting] = deque()

    @classmethod
    def of_host(cls) -> "Budget":
        """Return all cores that this process may use, and four fifths of the memory."""
        host = Host.here()
        return cls(host.cores, host.memory // _MIB * 4 // 5)

    @contextlib.asynccontextmanager
    async def share(self, use: Use, cores: int, memory: int) -> AsyncIterator[int]:
        """Context manager: wait for cores and memory, and hold them; yield the granted cores.

        A request for more than the host has is reduced to all of it.
        """
        request = _Waiting(use, min(cores, self.cores), min(memory, self.memory))
        self._waiting.append(request)
        self._admit()
        try:
            await request.turn.wait()
            yield request.cores
        finally:
            if request.turn.is_set():
                self._used_cores[use] -= request.cores
                self._free_memory += request.memory
            else:
                self._waiting.remove(request)
            self._admit()

    def _admit(self) -> None:
        """Grant waiting requests that fit, in order."""
        behind: set[Use] = set()
        for request in list(self._waiting):
            if request.use in behind:
                continue
            if request.cores > self.cores - self._used_cores[request.use]:
                behind.add(request.use)
                continue
            # Nothing overtakes a request for memory, or a large one would wait for ever.
            if request.memory > self._free_memory:
                return
            self._waiting.remove(request)
            self._used_cores[request.use] += request.cores
            self._free_memory -= request.memory
            request.turn.set()
