"""Whole traces, fetched from the scheduler and held on disk while people look at them.

The files are mapped and unlinked: a trace may be larger than the memory, and leaves nothing behind.
"""

import asyncio
import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgym.api.jobs import Artifact
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.trace import trace_files
from kgym.trace.records import Trace

# Of one trace: eleven million records.
MOST_BYTES = 256 << 20
# Traces at a time; the one that was not looked at for longest gives way.
HELD = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldTrace:
    """A trace on disk, and its threads: their PIDs in order, and how many records each has."""

    trace: Trace
    pids: NDArray[np.int32]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace) -> "HeldTrace":
        """Look through the trace."""
        return cls(trace, *np.unique(trace.pid, return_counts=True))


class HeldTraces:
    """The traces of one monitor, by their content: whoever may read an artifact knows its hash."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, HeldTrace] = OrderedDict()
        self._lock = asyncio.Lock()

    async def look(
        self,
        client: AsyncClient,
        place: tuple[int, int],
        artifact: Artifact,
        ask: Callable[[HeldTrace], T],
    ) -> T:
        """Return what `ask` finds in a trace; it runs in a thread, one at a time.

        `place` is job and step. Raises UserError `trace_too_large` or `bad_trace`, KgymError as
        the client does, InfrastructureError `artifact_corrupt`.
        """
        if artifact.size > MOST_BYTES:
            raise UserError(
                "trace_too_large",
                f"{artifact.name} has {artifact.size >> 20} MiB, and pages show traces up to"
                f" {MOST_BYTES >> 20} MiB; download it, and read it with `kgym trace show`",
            )
        async with self._lock:
            held = self._held.get(artifact.sha256)
            if held is None:
                content = client.read_artifact(*place, artifact.name)
                held = await self._fetch(content, artifact)
                while len(self._held) >= HELD:
                    self._held.popitem(last=False)
                self._held[artifact.sha256] = held
            self._held.move_to_end(artifact.sha256)
            return await asyncio.to_thread(ask, held)

    async def _fetch(self, content: AsyncIterator[bytes], artifact: Artifact) -> HeldTrace:
        with tempfile.TemporaryFile() as file:  # mapped, it stays until nobody looks at it
            digest, size = hashlib.sha256(), 0
            async for part in content:
                size += len(part)
                if size > artifact.size:
                    break
                await asyncio.to_thread(_write, file, part, digest.update)
            if digest.hexdigest() != artifact.sha256:
                raise InfrastructureError(
                    "artifact_corrupt", f"{artifact.name} came with other bytes than were stored"
                )
            file.flush()
            trace = await asyncio.to_thread(trace_files.mapped, file)
            return await asyncio.to_thread(HeldTrace.of, trace)


def _write(file: IO[bytes], part: bytes, hashed: Callable[[bytes], None]) -> None:
    file.write(part)
    hashed(part)
