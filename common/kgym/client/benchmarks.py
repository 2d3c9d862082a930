"""What is asked of the scheduler about benchmarks."""

from collections.abc import AsyncIterator, Iterator, Sequence

from kgym.api.benchmarks.attempts import AttemptRecord, AttemptRow
from kgym.api.benchmarks.bugs import BugFacts, PublishedBug
from kgym.api.benchmarks.publication import (
    AttemptFilter,
    AttemptPage,
    BenchmarkAbout,
    BenchmarkFilter,
    BenchmarkLine,
    BenchmarkView,
    FactsFilter,
    Published,
)
from kgym.client import endpoints
from kgym.client.connection import AsyncConnection, Connection


class BenchmarkCalls(Connection):
    """Benchmarks, for `Client`."""

    def benchmarks(self) -> Iterator[BenchmarkLine]:
        """Yield all benchmarks, by name."""
        wanted = BenchmarkFilter()
        while True:
            page = self._do(endpoints.benchmarks(wanted))
            yield from page.benchmarks
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def benchmark(self, name: str) -> BenchmarkView:
        """Return a benchmark: what its dataset is, and who has tried.

        Raises:
            Refused: There is none of this name (`benchmark_missing`).
        """
        return self._do(endpoints.benchmark(name))

    def benchmark_bugs(self, name: str) -> Iterator[BugFacts]:
        """Yield what is known of a benchmark's bugs, by id."""
        wanted = FactsFilter(limit=1000)
        while True:
            page = self._do(endpoints.benchmark_bugs(name, wanted))
            yield from page.bugs
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def benchmark_bug(self, name: str, bug: str) -> PublishedBug:
        """Return a bug of a benchmark, with its developers' patch."""
        return self._do(endpoints.benchmark_bug(name, bug))

    def benchmark_attempts(self, name: str, after: int = 0) -> Iterator[AttemptRow]:
        """Yield a benchmark's attempts, without their patches, that came after a version."""
        wanted = AttemptFilter(cursor=f"{after + 1}-0", limit=5000)
        while True:
            page = self._do(endpoints.benchmark_attempts(name, wanted))
            yield from page.attempts
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def benchmark_attempt(self, name: str, bug: str, setup: int, run: int) -> AttemptRecord:
        """Return an attempt with its patch; `setup` is the number that the benchmark gives it."""
        return self._do(endpoints.benchmark_attempt(name, bug, setup, run))

    def publish(self, name: str, about: BenchmarkAbout) -> BenchmarkView:
        """Add a benchmark, or find it there with the same dataset.

        Raises:
            Refused: The name is that of another dataset (`benchmark_exists`).
        """
        return self._do(endpoints.publish(name, about))

    def publish_bugs(self, name: str, bugs: Sequence[PublishedBug]) -> Published:
        """Add up to 200 bugs to a benchmark of yours, or replace them."""
        return self._do(endpoints.publish_bugs(name, bugs))

    def publish_attempts(self, name: str, attempts: Sequence[AttemptRecord]) -> Published:
        """Add up to 500 attempts to a benchmark of yours, or replace them."""
        return self._do(endpoints.publish_attempts(name, attempts))

    def remove_benchmark(self, name: str) -> None:
        """Remove a benchmark of yours, with all that was published of it."""
        self._do(endpoints.remove_benchmark(name))


class AsyncBenchmarkCalls(AsyncConnection):
    """Benchmarks, for `AsyncClient`."""

    async def benchmarks(self) -> AsyncIterator[BenchmarkLine]:
        """Yield all benchmarks, by name."""
        wanted = BenchmarkFilter()
        while True:
            page = await self._do(endpoints.benchmarks(wanted))
            for one in page.benchmarks:
                yield one
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def benchmark(self, name: str) -> BenchmarkView:
        """Return a benchmark: what its dataset is, and who has tried."""
        return await self._do(endpoints.benchmark(name))

    async def benchmark_bugs(self, name: str) -> AsyncIterator[BugFacts]:
        """Yield what is known of a benchmark's bugs, by id."""
        wanted = FactsFilter(limit=200)
        while True:
            page = await self._do(endpoints.benchmark_bugs(name, wanted))
            for one in page.bugs:
                yield one
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def benchmark_bug(self, name: str, bug: str) -> PublishedBug:
        """Return a bug of a benchmark, with its developers' patch."""
        return await self._do(endpoints.benchmark_bug(name, bug))

    async def benchmark_attempts(self, name: str, wanted: AttemptFilter) -> AttemptPage:
        """Return a page of a benchmark's attempts, without their patches."""
        return await self._do(endpoints.benchmark_attempts(name, wanted))

    async def benchmark_attempt(self, name: str, bug: str, setup: int, run: int) -> AttemptRecord:
        """Return an attempt with its patch; `setup` is the number that the benchmark gives it."""
        return await self._do(endpoints.benchmark_attempt(name, bug, setup, run))

    async def publish(self, name: str, about: BenchmarkAbout) -> BenchmarkView:
        """Add a benchmark, or find it there with the same dataset."""
        return await self._do(endpoints.publish(name, about))

    async def publish_bugs(self, name: str, bugs: Sequence[PublishedBug]) -> Published:
        """Add up to 200 bugs to a benchmark of yours, or replace them."""
        return await self._do(endpoints.publish_bugs(name, bugs))

    async def publish_attempts(self, name: str, attempts: Sequence[AttemptRecord]) -> Published:
        """Add up to 500 attempts to a benchmark of yours, or replace them."""
        return await self._do(endpoints.publish_attempts(name, attempts))

    async def remove_benchmark(self, name: str) -> None:
        """Remove a benchmark of yours, with all that was published of it."""
        await self._do(endpoints.remove_benchmark(name))
