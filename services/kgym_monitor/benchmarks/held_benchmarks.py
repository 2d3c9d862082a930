"""Published benchmarks, read once and read on: their attempts as columns."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kgym.api.benchmarks.attempts import AttemptRow
from kgym.api.benchmarks.bugs import BugFacts
from kgym.api.benchmarks.publication import AttemptFilter, BenchmarkView
from kgym.bench.attempt_table import AttemptTable
from kgym.client import AsyncClient

HELD = 4
"""Benchmarks that are kept at the same time."""
PATIENCE = 0.5
"""Seconds that a page waits for what is being read, before it says so."""
PART = 1000
"""Attempts of one answer: what takes the event loop's time is bounded."""


@dataclass(frozen=True, eq=False)
class HeldBenchmark:
    """A benchmark at one version."""

    view: BenchmarkView
    facts: Mapping[str, BugFacts]
    """By id, in order."""
    table: AttemptTable


@dataclass(eq=False)
class Reading:
    """A benchmark that is being read."""

    task: "asyncio.Task[HeldBenchmark]"
    wanted: int
    seen: int = field(default=0)
    """Attempts, of those wanted."""


class HeldBenchmarks:
    """Reads benchmarks with the monitor's own token; every reader sees the same ones."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._held: dict[str, HeldBenchmark] = {}
        self._reading: dict[str, Reading] = {}

    async def get(self, view: BenchmarkView) -> HeldBenchmark | Reading:
        """Return the benchmark as it was when `view` was read, or later; or how far it is read.

        What is held of an earlier version is read on from there.
        """
        held = self._held.get(view.name)
        if held is not None and _is_as_new(held.view, view):
            self._held[view.name] = self._held.pop(view.name)  # was used last
            return held
        if (reading := self._reading.get(view.name)) is None:
            task = asyncio.create_task(self._read(view, held))
            reading = self._reading[view.name] = Reading(task, view.attempts)
            task.add_done_callback(lambda _: self._reading.pop(view.name, None))
        done, _ = await asyncio.wait({reading.task}, timeout=PATIENCE)
        return reading.task.result() if done else reading

    async def close(self) -> None:
        """End what is being read."""
        tasks = [one.task for one in self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, view: BenchmarkView, held: HeldBenchmark | None) -> HeldBenchmark:
        if held is not None and held.view.created_at != view.created_at:
            held = None  # another one of the same name
        # Setups that came since are in no attempt that is shown: `view` is older than the rows.
        facts = {one.id: one async for one in self._client.benchmark_bugs(view.name)}
        after = held.view.version if held is not None else 0
        wanted = AttemptFilter(cursor=f"{after + 1}-0", limit=PART)
        parts: list[AttemptTable] = []
        while True:
            page = await self._client.benchmark_attempts(view.name, wanted)
            parts.append(await asyncio.to_thread(_table, page.attempts, view))
            if (reading := self._reading.get(view.name)) is not None:
                reading.seen += len(page.attempts)
            if page.next is None:
                break
            wanted = wanted.model_copy(update={"cursor": page.next})
        before = [] if held is None else [held.table]
        made = HeldBenchmark(view, facts, await asyncio.to_thread(_joined, before + parts))
        self._held[view.name] = made
        while len(self._held) > HELD:
            self._held.pop(next(iter(self._held)))
        return made


def _is_as_new(held: BenchmarkView, view: BenchmarkView) -> bool:
    return held.created_at == view.created_at and held.version >= view.version


def _table(rows: Sequence[AttemptRow], view: BenchmarkView) -> AttemptTable:
    known = [row for row in rows if row.setup < len(view.setups)]
    return AttemptTable.of_rows(known, [one.setup for one in view.setups])


def _joined(parts: Sequence[AttemptTable]) -> AttemptTable:
    """Join parts two by two: each row is moved a few times, however many parts there are."""
    while len(parts) > 1:
        pairs = [parts[start : start + 2] for start in range(0, len(parts), 2)]
        parts = [pair[0].merged(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]
