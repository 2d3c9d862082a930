"""Published benchmarks in memory, shared by all readers."""

import asyncio
from dataclasses import dataclass, field

from kgym import tasks
from kgym.bench import publication
from kgym.bench.publication import BenchmarkStore, Publication
from kgym.bench.published_benchmark import PublishedBenchmark, load
from kgym.errors import InfrastructureError, KgymError

# Most benchmarks in memory.
HELD = 4
# Most benchmarks in the list.
LISTED = 500
# Seconds that a page waits for a benchmark before it shows the loading progress instead.
PATIENCE = 0.5
_AT_ONCE = 16


@dataclass(eq=False)
class Reading:
    """A benchmark that is being read."""

    attempts: int
    task: "asyncio.Task[PublishedBenchmark]"
    seen: int = field(default=0)
    """Attempts read so far."""


class HeldBenchmarks:
    """Cache of benchmarks, read from the store on first use and after changes."""

    def __init__(self, store: BenchmarkStore) -> None:
        self._store = store
        # By name, least recently used first. A damaged benchmark is cached as its error, so that it
        # is not read again for every page.
        self._held: dict[str, tuple[str, PublishedBenchmark | KgymError]] = {}
        self._reading: dict[str, Reading] = {}
        self._turns = asyncio.Semaphore(2)

    async def list(self) -> list[tuple[str, Publication | KgymError]]:
        """Return all benchmarks by name, each with its index or its error."""
        names = (await publication.names(self._store))[:LISTED]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def index(name: str) -> Publication | KgymError:
            async with turns:
                try:
                    return await publication.read_index(self._store, name)
                except KgymError as error:
                    return error

        return list(zip(names, await asyncio.gather(*map(index, names)), strict=True))

    async def get(self, name: str) -> PublishedBenchmark | Reading:
        """Return the benchmark as currently published, or the progress of reading it.

        Raises NotFound `benchmark_missing`, InfrastructureError `benchmark_damaged`.
        """
        index = await publication.read_index(self._store, name)
        if (held := self._current(name, index.version)) is not None:
            return held
        if (reading := self._reading.get(name)) is None:
            task = asyncio.create_task(self._read(name, index))
            reading = self._reading[name] = Reading(index.attempts, task)
            task.add_done_callback(lambda task: self._finish(name, task))
        # Reading goes on when the page is left: the next one finds it further.
        done, _ = await asyncio.wait({reading.task}, timeout=PATIENCE)
        return reading.task.result() if done else reading

    async def close(self) -> None:
        """Stop reading."""
        await tasks.end(reading.task for reading in self._reading.values())

    def _current(self, name: str, version: str) -> PublishedBenchmark | None:
        """Return the benchmark if this version is cached; raise its cached error."""
        if name not in self._held or self._held[name][0] != version:
            return None
        entry = self._held[name] = self._held.pop(name)
        if isinstance(entry[1], KgymError):
            raise entry[1].with_traceback(None)  # otherwise each raise makes the traceback longer
        return entry[1]

    def _finish(self, name: str, task: "asyncio.Task[PublishedBenchmark]") -> None:
        self._reading.pop(name, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the next page shows it

    async def _read(self, name: str, index: Publication) -> PublishedBenchmark:
        def progress(count: int) -> None:
            if (reading := self._reading.get(name)) is not None:
                reading.seen = count

        async with self._turns:
            try:
                benchmark = await load(self._store, name, progress)
            except InfrastructureError as error:
                if error.reason == "benchmark_damaged":  # other errors may pass: retry
                    self._hold(name, index.version, error)
                raise
        self._hold(name, benchmark.version, benchmark)
        return benchmark

    def _hold(self, name: str, version: str, entry: PublishedBenchmark | KgymError) -> None:
        self._held.pop(name, None)
        self._held[name] = version, entry
        while len(self._held) > HELD:
            self._held.pop(next(iter(self._held)))
