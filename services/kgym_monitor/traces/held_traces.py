"""Complete traces, fetched from the scheduler and cached on disk.

Files are mapped and unlinked: a trace may be larger than memory, and no file is left behind.
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

# Most bytes of a trace: eleven million records.
MOST_BYTES = 256 << 20
# Most traces in the cache; the least recently used one is dropped.
HELD = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldTrace:
    """A trace on disk, with sorted PIDs of its threads and their numbers of records."""

    trace: Trace
    pids: NDArray[np.int32]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace) -> "HeldTrace":
        """Count the records of each thread."""
        return cls(trace, *np.unique(trace.pid, return_counts=True))


class HeldTraces:
    """Traces of a monitor, by hash: callers have read the artifact's hash from its job."""

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
        """Call `ask` with a trace, in a thread, one at a time.

        `place` is job and step. Raises UserError `trace_too_large` or `bad_trace`, KgymError as
        the client does, InfrastructureError `artifact_corrupt`.
        """
        if artifact.size > MOST_BYTES:
            raise UserError(
                "trace_too_large",
                f"{artifact.name} has {artifact.size >> 20} MiB, but pages show traces up to"
                f" {MOST_BYTES >> 20} MiB: download it and use `kgym trace show`",
            )
        # One at a time: a search takes a whole core.
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
        with tempfile.TemporaryFile() as file:  # the mapping keeps it until the trace is dropped
            digest, size = hashlib.sha256(), 0
            async for part in content:
                size += len(part)
                if size > artifact.size:
                    break
                await asyncio.to_thread(_write, file, part, digest.update)
            if digest.hexdigest() != artifact.sha256:
                raise InfrastructureError(
                    "artifact_corrupt", f"{artifact.name} does not match its checksum"
                )
            file.flush()
            trace = await asyncio.to_thread(trace_files.mapped, file)
            return await asyncio.to_thread(HeldTrace.of, trace)


def _write(file: IO[bytes], part: bytes, hashed: Callable[[bytes], None]) -> None:
    file.write(part)
    hashed(part)
