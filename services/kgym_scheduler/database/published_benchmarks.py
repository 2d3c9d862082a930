"""Benchmarks in the database: each method is one transaction."""

from collections.abc import Sequence

from kgym.api.benchmarks.attempts import AttemptRecord
from kgym.api.benchmarks.bugs import PublishedBug
from kgym.api.benchmarks.publication import (
    AttemptFilter,
    BenchmarkAbout,
    BenchmarkFilter,
    BenchmarkPage,
    BenchmarkView,
    FactsFilter,
    FactsPage,
    Published,
)
from kgym_scheduler.database import benchmarks
from kgym_scheduler.database.clock import DatabaseClock
from kgym_scheduler.database.connection import Database


class PublishedBenchmarks:
    """Takes benchmarks, and shows them; `owner` is whose may be changed, None: everybody's."""

    def __init__(self, database: Database, clock: DatabaseClock) -> None:
        self._database = database
        self._clock = clock

    async def page(self, wanted: BenchmarkFilter) -> BenchmarkPage:
        """Return one page of all benchmarks, by name."""
        async with self._database.read() as connection:
            return await benchmarks.page(connection, wanted)

    async def get(self, name: str) -> BenchmarkView:
        """Return a benchmark; raise NotFound `benchmark_missing`, as all that follow."""
        async with self._database.read() as connection:
            return await benchmarks.one(connection, name)

    async def bugs(self, name: str, wanted: FactsFilter) -> FactsPage:
        """Return one page of its bugs, by id."""
        async with self._database.read() as connection:
            return await benchmarks.bugs(connection, name, wanted)

    async def bug(self, name: str, wanted: str) -> PublishedBug:
        """Return one of its bugs; raise NotFound `benchmark_bug_missing`."""
        async with self._database.read() as connection:
            return await benchmarks.bug(connection, name, wanted)

    async def attempts(self, name: str, wanted: AttemptFilter) -> str:
        """Return one page of its attempts, as the JSON of an `AttemptPage`."""
        async with self._database.read() as connection:
            return await benchmarks.attempts(connection, name, wanted)

    async def attempt(self, name: str, bug: str, setup: int, run: int) -> AttemptRecord:
        """Return one of its attempts; raise NotFound `attempt_missing`."""
        async with self._database.read() as connection:
            return await benchmarks.attempt(connection, name, bug, setup, run)

    async def create(self, name: str, about: BenchmarkAbout, submitter: str) -> bool:
        """Add a benchmark; return whether it is new. Raises Conflict `benchmark_exists`."""
        async with self._database.write() as connection:
            now = await self._clock.now(connection)
            return await benchmarks.create(connection, name, about, submitter, now)

    async def put_bugs(
        self, name: str, given: Sequence[PublishedBug], owner: str | None
    ) -> Published:
        """Add bugs, or replace those of their ids; raise UserError `too_many_bugs`."""
        async with self._database.write() as connection:
            now = await self._clock.now(connection)
            return await benchmarks.put_bugs(connection, name, given, owner, now)

    async def put_attempts(
        self, name: str, given: Sequence[AttemptRecord], owner: str | None
    ) -> Published:
        """Add attempts, or replace those of the same bug, setup and run.

        Raises UserError `unknown_bug`, `too_many_setups`, `too_many_attempts`.
        """
        async with self._database.write() as connection:
            now = await self._clock.now(connection)
            return await benchmarks.put_attempts(connection, name, given, owner, now)

    async def remove(self, name: str, owner: str | None) -> None:
        """Remove a benchmark with all that was published of it."""
        async with self._database.write() as connection:
            await benchmarks.remove(connection, name, owner)
