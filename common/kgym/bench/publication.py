"""Publication of benchmarks: a dataset's bugs and their attempts, in the store the monitor reads.

The store is a folder or a prefix in a bucket. A benchmark in it is::

    NAME/benchmark.json            its index: a `Publication`, one line of JSON
    NAME/VERSION/bugs.jsonl        a `PublishedBug` per line, by id
    NAME/VERSION/attempts.jsonl    an `AttemptRecord` per line

Each publish writes a VERSION of its own and then replaces the index, so that readers see all of it
or nothing.

Any writer of the store may write anything. So readers trust nothing: sizes and counts are bounded,
every line is validated, and both files must have the SHA-256 given in the index.
"""

import contextlib
import hashlib
import re
import tempfile
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from kgym.api.faults import first_fault
from kgym.api.jobs import Artifact
from kgym.api.steps import Sha256, Strict
from kgym.bench.attempt_record import (
    AttemptRecord,
    BugId,
    FailedAttempt,
    FailedSetup,
    Setup,
    Words,
    failed_setups,
)
from kgym.bench.bug_record import PublishedBug
from kgym.bench.dataset import MOST as BUGS
from kgym.bench.dataset import About
from kgym.errors import Conflict, InfrastructureError, NotFound, UserError

INDEX, BUG_FILE, ATTEMPT_FILE = "benchmark.json", "bugs.jsonl", "attempts.jsonl"
SETUPS = 1000
ATTEMPTS = 2_000_000
INDEX_BYTES = 4 << 20
# Maximum size of the file of bugs, whose attributes a reader keeps in memory.
BUG_BYTES = 256 << 20
# Maximum size of the file of attempts, of which a reader keeps only numbers in memory.
ATTEMPT_BYTES = 8 << 30
_ABANDONED_SECONDS = 86400
# Part of URL paths and of storage keys: without a slash, and never `.` or `..`.
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)


class BenchmarkStore(Protocol):
    """The store of benchmarks: the part of `kgym.transport`'s storage that is needed here.

    A protocol, since the monitor, which reads benchmarks, may not import `kgym.transport`.
    """

    async def put(self, key: str, path: Path) -> Artifact:
        """Store a file atomically, replacing the one with this key."""

    def read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Yield the bytes [start, stop) of a file."""

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """Return the bytes below each folder at `depth` levels below `prefix`."""

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """Return the seconds since a file was last stored in each of these folders."""

    async def remove(self, prefix: str) -> None:
        """Remove a folder."""


class StoredFile(Strict):
    """Size and SHA-256 of a file of a benchmark."""

    size: int = Field(ge=0, le=ATTEMPT_BYTES)
    sha256: Sha256


class Publication(Strict):
    """The index of a published benchmark."""

    version: str = Field(pattern=r"^[0-9a-f]{32}$", description="name of the folder of its files")
    published_at: AwareDatetime
    description: Words = ""
    source: Words | None = Field(None, description="where its dataset comes from")
    dataset: Sha256 = Field(description="of the dataset's records")
    bugs: int = Field(ge=0, le=BUGS)
    attempts: int = Field(ge=0, le=ATTEMPTS)
    setups: list[Setup] = Field(
        max_length=SETUPS, description="by number, which is stable when attempts are added"
    )
    failed: list[FailedSetup] = Field(
        [], max_length=SETUPS, description="attempts without a verdict, which no figure includes"
    )
    bug_file: StoredFile
    attempt_file: StoredFile


def checked_name(name: str) -> str:
    """Return the name; raise UserError `bad_option` if it is invalid."""
    if not _NAME.fullmatch(name):
        raise UserError(
            "bad_option",
            f"--name {name[:100]!r}: a name has letters, digits, `.`, `_` and `-`, 100 at most",
        )
    return name


async def names(store: BenchmarkStore) -> list[str]:
    """Return the names of published benchmarks, sorted. Their indexes may be damaged."""
    folders = await store.sizes("", 1)
    return sorted(name for name in folders if _NAME.fullmatch(name))


async def read_index(store: BenchmarkStore, name: str) -> Publication:
    """Return the index of a benchmark.

    Raises NotFound `benchmark_missing`, InfrastructureError `benchmark_damaged`.
    """
    data = bytearray()
    try:
        async with contextlib.aclosing(store.read(f"{name}/{INDEX}", 0, INDEX_BYTES)) as pieces:
            async for piece in pieces:
                data += piece
                if piece.endswith(b"\n"):  # the index is one line
                    break
        return Publication.model_validate_json(bytes(data))
    except ValidationError as error:
        raise damaged(name, f"{INDEX}: {first_fault(error)}") from error
    except InfrastructureError as error:
        if error.reason in {"artifact_missing", "bad_key"}:
            raise NotFound(
                "benchmark_missing", f"there is no benchmark {name!r}", benchmark=name
            ) from error
        if error.reason == "artifact_truncated":
            raise damaged(name, f"{INDEX} is cut off, or too large") from error
        raise


async def publish(
    store: BenchmarkStore,
    name: str,
    about: About,
    bugs: Iterable[PublishedBug],
    attempts: Iterable[AttemptRecord],
    failed: Iterable[FailedAttempt] = (),
) -> Publication:
    """Publish a dataset's bugs and their attempts, replacing those published before.

    Raises Conflict `benchmark_exists` if another dataset has the name, UserError `unknown_bug`,
    `bad_attempts`, `too_many_setups`, `too_many_attempts`, `too_many_bytes`.
    """
    replaced = await _replaced(store, name, about)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        known_setups = replaced.setups if replaced else []
        index = _write_files(folder, name, about, bugs, attempts, known_setups, failed)
        for file in (BUG_FILE, ATTEMPT_FILE):
            await store.put(f"{name}/{index.version}/{file}", folder / file)
        # Last: until now, readers have seen the previous version.
        await store.put(f"{name}/{INDEX}", folder / INDEX)
    await _remove_others(store, name, index, replaced)
    return index


async def _replaced(store: BenchmarkStore, name: str, about: About) -> Publication | None:
    """Return the previous publication of this name; raise Conflict `benchmark_exists`."""
    try:
        index = await read_index(store, name)
    except NotFound:
        return None
    except InfrastructureError as error:
        if error.reason != "benchmark_damaged":
            raise
        return None  # publishing again repairs it
    # Figures are compared by a benchmark's name, so its bugs never change.
    if index.dataset != about.sha256:
        raise Conflict(
            "benchmark_exists",
            f"{name} is published with another dataset ({index.dataset[:12]}), and never changes:"
            " give this one another name",
            benchmark=name,
        )
    return index


async def _remove_others(
    store: BenchmarkStore, name: str, index: Publication, replaced: Publication | None
) -> None:
    """Remove the replaced version, and those of killed publishes."""
    # A younger folder without an index may belong to a publish that is still in progress.
    # Removed only after the new index is in place: readers may still use the old version.
    ages = await store.ages(name, 1)
    for folder, age in ages.items():
        version = folder.rpartition("/")[2]
        if version == index.version:
            continue
        if age > _ABANDONED_SECONDS or (replaced is not None and version == replaced.version):
            await store.remove(folder)


def _write_files(
    folder: Path,
    name: str,
    about: About,
    bugs: Iterable[PublishedBug],
    attempts: Iterable[AttemptRecord],
    known_setups: Iterable[Setup],
    failed: Iterable[FailedAttempt],
) -> Publication:
    by_id = {bug.facts.id: bug for bug in bugs}
    bug_file = _written(folder / BUG_FILE, by_id.values(), BUG_BYTES)
    checked = _CheckedAttempts(name, attempts, by_id.keys())
    attempt_file = _written(folder / ATTEMPT_FILE, checked, ATTEMPT_BYTES)
    # Page addresses contain the numbers of setups, so published setups keep theirs.
    setups = list(dict.fromkeys([*known_setups, *sorted(checked.setups, key=str)]))
    if len(setups) > SETUPS:
        raise UserError("too_many_setups", f"{name} has more than {SETUPS:,} setups")
    index = Publication(
        version=uuid.uuid4().hex,
        published_at=datetime.now(UTC),
        description=about.description,
        source=about.source,
        dataset=about.sha256,
        bugs=len(by_id),
        attempts=len(checked.keys),
        setups=setups,
        failed=failed_setups(failed, checked.keys)[:SETUPS],
        bug_file=bug_file,
        attempt_file=attempt_file,
    )
    # One line: readers know that the index is complete when they see its newline.
    _written(folder / INDEX, [index], INDEX_BYTES)
    return index


class _CheckedAttempts:
    """Iterator over attempts that raises a UserError for the first unpublishable one."""

    def __init__(self, name: str, attempts: Iterable[AttemptRecord], bugs: Set[BugId]) -> None:
        self._name = name
        self._attempts = attempts
        self._bugs = bugs
        # One object for each setup: there may be two million attempts.
        self.setups: dict[Setup, Setup] = {}
        self.keys: set[tuple[Setup, BugId, int]] = set()

    def __iter__(self) -> Iterator[AttemptRecord]:
        for attempt in self._attempts:
            if attempt.bug not in self._bugs:
                raise UserError(
                    "unknown_bug",
                    f"{self._name} has no bug {attempt.bug}: publish the dataset that has it",
                    benchmark=self._name,
                )
            setup = self.setups.setdefault(attempt.setup, attempt.setup)
            key = (setup, attempt.bug, attempt.run)
            if key in self.keys:
                raise UserError(
                    "bad_attempts", f"{attempt.setup} has run {attempt.run} on {attempt.bug} twice"
                )
            self.keys.add(key)
            if len(self.keys) > ATTEMPTS:
                raise UserError(
                    "too_many_attempts", f"{self._name} has more than {ATTEMPTS:,} attempts"
                )
            yield attempt


def _written(path: Path, records: Iterable[BaseModel], most: int) -> StoredFile:
    """Write one record per line; raise UserError `too_many_bytes`."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for record in records:
            line = record.model_dump_json(exclude_defaults=True).encode() + b"\n"
            size += len(line)
            if size > most:
                raise UserError("too_many_bytes", f"{path.name} has more than {most >> 20} MiB")
            digest.update(line)
            file.write(line)
    return StoredFile(size=size, sha256=digest.hexdigest())


def damaged(name: str, fault: str) -> InfrastructureError:
    """Return the error for a benchmark whose files cannot be from a publish."""
    return InfrastructureError(
        "benchmark_damaged",
        f"the benchmark {name} is damaged ({fault}): publish it again",
        benchmark=name,
    )
