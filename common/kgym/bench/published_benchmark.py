"""Published benchmarks in memory, for pages and figures: bugs by id, attempts as columns."""

import asyncio
import contextlib
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from kgym.api.faults import first_fault
from kgym.bench.attempt_record import AttemptRecord, BugId, FailedSetup, Setup
from kgym.bench.attempt_table import AttemptTable, TableBuilder
from kgym.bench.bug_record import BugFacts, PublishedBug
from kgym.bench.publication import (
    ATTEMPT_FILE,
    BUG_FILE,
    BenchmarkStore,
    Publication,
    StoredFile,
    damaged,
    read_index,
)
from kgym.errors import InfrastructureError, NotFound

# Maximum bytes of a bug or an attempt.
_LINE = 16 << 20
T = TypeVar("T", PublishedBug, AttemptRecord)
# The start and end of a line, in bytes of its file.
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark in memory, without patches."""

    name: str
    description: str
    version: str
    """Identifies the content; each publish has its own."""
    facts: Mapping[BugId, BugFacts]
    """By id, in order."""
    table: AttemptTable
    failed: Sequence[FailedSetup]
    """Attempts without a verdict, which no figure includes."""

    @property
    def setups(self) -> list[tuple[int, Setup]]:
        """The setups with their numbers in page addresses."""
        return list(enumerate(self.table.setups))


@dataclass(frozen=True, eq=False)
class PublishedBenchmark(Benchmark):
    """A published benchmark; patches are read from the store when a page shows one."""

    store: BenchmarkStore
    index: Publication
    bug_spans: Mapping[BugId, Span]
    attempt_ends: "array[int]"
    """The end of each line in the file of attempts."""

    async def bug(self, bug: str) -> PublishedBug:
        """Return a bug with its fix; raise NotFound `benchmark_bug_missing`."""
        if bug not in self.bug_spans:
            raise NotFound(
                "benchmark_bug_missing", f"the benchmark {self.name} has no bug {bug!r}", bug=bug
            )
        record = _record(self.name, PublishedBug, await self._line(BUG_FILE, self.bug_spans[bug]))
        # Another publish may have replaced the file since its index was read.
        if record.facts.id != bug:
            raise damaged(self.name, f"{BUG_FILE} has changed")
        return record

    async def bugs(self) -> dict[BugId, PublishedBug]:
        """Return all bugs with their fixes."""
        bugs, _ = await _read_bugs(self.store, self.name, self.index)
        return bugs

    async def attempt(self, bug: str, setup: int, run: int) -> AttemptRecord:
        """Return an attempt with its patch; raise NotFound `attempt_missing`."""
        (first,), (count,) = self.table.counts(setup, self.table.places([bug]))
        runs = self.table.run[first : first + count].tolist()
        if run not in runs:
            raise NotFound(
                "attempt_missing",
                f"the benchmark {self.name} has no run {run} of setup {setup} on {bug!r}",
            )
        line = int(self.table.source[first + runs.index(run)])
        span = (self.attempt_ends[line - 1] if line else 0, self.attempt_ends[line])
        record = _record(self.name, AttemptRecord, await self._line(ATTEMPT_FILE, span))
        if (record.bug, record.setup, record.run) != (bug, self.table.setups[setup], run):
            raise damaged(self.name, f"{ATTEMPT_FILE} has changed")
        return record

    async def _line(self, file: str, span: Span) -> bytes:
        data = bytearray()
        try:
            key = f"{self.name}/{self.version}/{file}"
            async with contextlib.aclosing(self.store.read(key, *span)) as pieces:
                async for piece in pieces:
                    data += piece
        except InfrastructureError as error:
            if error.reason != "artifact_missing":
                raise
            raise InfrastructureError(
                "benchmark_replaced",
                f"the benchmark {self.name} was published again a moment ago: reload the page",
            ) from error
        return bytes(data)


async def load(
    store: BenchmarkStore, name: str, progress: Callable[[int], None] = lambda count: None
) -> PublishedBenchmark:
    """Read a benchmark; `progress` is called with the number of attempts read so far.

    Raises NotFound `benchmark_missing`, InfrastructureError `benchmark_damaged`.
    """
    index = await read_index(store, name)
    while True:
        try:
            return await _load(store, name, index, progress)
        except InfrastructureError as error:
            if error.reason not in {"artifact_missing", "artifact_truncated"}:
                raise
            # A publish removes the files of the version that it replaces.
            newest = await read_index(store, name)
            if newest.version == index.version:
                raise damaged(name, str(error)) from error
            index = newest


async def _read_bugs(
    store: BenchmarkStore, name: str, index: Publication
) -> tuple[dict[BugId, PublishedBug], dict[BugId, Span]]:
    """Return all bugs with their fixes, and their spans in the file."""
    bugs: dict[BugId, PublishedBug] = {}
    spans: dict[BugId, Span] = {}

    def add(line: bytes, span: Span) -> None:
        bug = PublishedBug.model_validate_json(line)
        if bug.facts.id in bugs:
            raise ValueError(f"{bug.facts.id} occurs twice")
        bugs[bug.facts.id], spans[bug.facts.id] = bug, span

    key = f"{name}/{index.version}/{BUG_FILE}"
    await _read_lines(store, name, key, index.bug_file, index.bugs, add)
    return bugs, spans


async def _load(
    store: BenchmarkStore, name: str, index: Publication, progress: Callable[[int], None]
) -> PublishedBenchmark:
    bugs, bug_spans = await _read_bugs(store, name, index)
    builder, ends = TableBuilder(index.setups), array("q")

    def add(line: bytes, span: Span) -> None:
        attempt = AttemptRecord.model_validate_json(line)
        if attempt.bug not in bugs:
            raise ValueError(f"unknown bug {attempt.bug}")
        builder.add(attempt)
        ends.append(span[1])
        progress(len(builder))

    key = f"{name}/{index.version}/{ATTEMPT_FILE}"
    await _read_lines(store, name, key, index.attempt_file, index.attempts, add)
    try:
        table = await asyncio.to_thread(builder.build)
    except ValueError as error:
        raise damaged(name, f"{ATTEMPT_FILE}: {error}") from error
    return PublishedBenchmark(
        name=name,
        description=index.description,
        version=index.version,
        facts={bug: published.facts for bug, published in bugs.items()},
        table=table,
        failed=index.failed,
        store=store,
        index=index,
        bug_spans=bug_spans,
        attempt_ends=ends,
    )


async def _read_lines(
    store: BenchmarkStore,
    name: str,
    key: str,
    stored: StoredFile,
    count: int,
    add: Callable[[bytes, Span], None],
) -> None:
    """Pass each line of a file to `add`, in a thread; raise InfrastructureError if it is damaged.

    The file must have `count` lines, and the size and SHA-256 given in the index.
    """
    file = key.rpartition("/")[2]
    digest, rest, start, number = hashlib.sha256(), b"", 0, 0

    def feed(piece: bytes) -> None:
        nonlocal rest, start, number
        digest.update(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            if number > count:
                raise damaged(name, f"{file} has more than {count} lines")
            end = start + len(line) + 1
            try:
                add(line, (start, end))
            except ValidationError as error:
                raise damaged(name, f"{file}, line {number}: {first_fault(error)}") from error
            except ValueError as error:
                raise damaged(name, f"{file}, line {number}: {error}") from error
            start = end
        if len(rest) > _LINE:
            raise damaged(name, f"{file}, line {number + 1} is too long")

    async with contextlib.aclosing(store.read(key, 0, stored.size)) as pieces:
        async for piece in pieces:
            await asyncio.to_thread(feed, piece)  # the event loop serves other pages meanwhile
    if rest or number != count:
        raise damaged(name, f"{file} has {number} lines, not {count}")
    if digest.hexdigest() != stored.sha256:
        raise damaged(name, f"SHA-256 mismatch of {file}: expected {stored.sha256[:12]}…")


def _record(name: str, model: type[T], line: bytes) -> T:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise damaged(name, f"a file has changed: {first_fault(error)}") from error
