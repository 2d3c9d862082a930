"""What a host has for the work that is done on it at the same time: builds, checks, VMs."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

from kgym.host.resources import Host

# MiB that one job of make takes: a compiler, or its share of a linker.
JOB_MIB = 512
_MIB = 1 << 20


class Use(StrEnum):
    """What cores are used for. Work of one kind takes turns; kinds share them by time."""

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
    """Cores, and memory in MiB. Who asks first is served first.

    Memory that is lacking ends programs, so all work shares one account of it. Cores that are
    lacking only make it slower: a check does not wait for the minutes of a VM.
    """

    def __init__(self, cores: int, memory: int) -> None:
        self.cores = cores
        self.memory = self._free_memory = memory
        self._used_cores: Counter[Use] = Counter()
        self._waiting: deque[_Waiting] = deque()

    @classmethod
    def of_host(cls) -> "Budget":
        """Return all of the cores that this process may use, and four fifths of the memory."""
        host = Host.here()
        return cls(host.cores, host.memory // _MIB * 4 // 5)

    @contextlib.asynccontextmanager
    async def share(self, use: Use, cores: int, memory: int) -> AsyncIterator[int]:
        """Wait until there is room for one more, and hold it; yield the cores: at most all.

        Who asks for more than there is waits until nothing is in use, and then gets all of it.
        """
        one = _Waiting(use, min(cores, self.cores), min(memory, self.memory))
        self._waiting.append(one)
        self._admit()
        try:
            await one.turn.wait()
            yield one.cores
        finally:
            if one.turn.is_set():
                self._used_cores[use] -= one.cores
                self._free_memory += one.memory
            else:
                self._waiting.remove(one)
            self._admit()

    def _admit(self) -> None:
        """Admit those there is room for, in order: nobody overtakes one that waits for memory."""
        behind: set[Use] = set()
        for one in list(self._waiting):
            if one.use in behind:
                continue
            if one.cores > self.cores - self._used_cores[one.use]:
                behind.add(one.use)
                continue
            if one.memory > self._free_memory:
                return
            self._waiting.remove(one)
            self._used_cores[one.use] += one.cores
            self._free_memory -= one.memory
            one.turn.set()
