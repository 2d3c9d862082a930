"""Retention of artifacts, by age and total size, and of logs, by age.

A plan is made first, and can be shown. Carrying it out checks each item again, as jobs run
meanwhile.
"""

# The database is updated before files are removed: a job never names files that are gone.

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Row, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.steps import Failure
from kgym.api.storage import OldFiles, OldLog
from kgym.api.worker_calls import attempt_folder
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database import views
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import UNFINISHED, attempts, events, jobs, steps
from kgym_scheduler.queue.step_inputs import numbered

# Logs of an attempt up to so many characters are never removed from the database.
SHORT_LOG = 1000
NOTE = "(removed for its age; see the artifact step.log)\n"
_ATTEMPT = re.compile(r"steps/[0-9]+/[0-9a-f]{32}")
_BATCH = 200

T = TypeVar("T")
Why = Literal["age", "budget", "unaccepted"]
# A step: its job and number.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArtifactPolicy:
    """Limits on age and size of artifacts and logs."""

    artifact_age: timedelta = timedelta(days=90)
    """Since the end of the attempt."""
    artifact_budget: int = 200 << 30
    """Bytes; beyond them, the oldest artifacts are removed."""
    unaccepted_age: timedelta = timedelta(days=1)
    """Since the end of the attempt, so that no step that uses it as input still runs."""
    log_age: timedelta = timedelta(days=30)
    """Since the last change of the job."""


class LoggedAttempt(OldLog):
    """An attempt whose log is to be removed from the database."""

    last: int
    """The event that stays, and tells that the log was removed."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The stored files of an ended attempt."""

    place: Place
    prefix: str
    bytes: int
    ended_at: datetime
    accepted: bool
    free: bool
    """Whether the job has finished."""


# --- artifacts ----------------------------------------------------------------------------


async def old_files(
    database: Database, storage: Storage, policy: ArtifactPolicy, now: datetime | None = None
) -> list[OldFiles]:
    """Return the files to remove: none that unfinished jobs made or name, and no unknown ones."""
    now = now or datetime.now(UTC)
    sizes = await storage.sizes("steps", 2)
    async with database.read() as connection:
        stored = await _stored(connection, sizes)
        needed = await _needed(connection)
    total = sum(sizes.values())
    old = []
    for files in sorted(stored, key=lambda files: files.ended_at):
        if why := _why(files, policy, now, needed, total):
            total -= files.bytes
            job, step = files.place
            old.append(
                OldFiles(job=job, step=step, prefix=files.prefix, bytes=files.bytes, why=why)
            )
    return old


def _why(
    files: _Stored, policy: ArtifactPolicy, now: datetime, needed: set[Place], total: int
) -> Why | None:
    # No job names unaccepted files: they are never needed, and the budget does not matter.
    if not files.accepted:
        return "unaccepted" if files.ended_at < now - policy.unaccepted_age else None
    if not files.free or files.place in needed:
        return None
    if files.ended_at < now - policy.artifact_age:
        return "age"
    return "budget" if total > policy.artifact_budget else None


async def remove_files(
    database: Database, storage: Storage, old: Sequence[OldFiles], now: datetime | None = None
) -> list[OldFiles]:
    """Remove the files that may still be removed; return these."""
    now = now or datetime.now(UTC)
    removed = []
    for batch in _batches(old):
        async with database.write() as connection:
            needed = await _needed(connection)
            gone = [
                files
                for files in batch
                if files.why == "unaccepted" or await _mark(connection, files, needed, now)
            ]
        for files in gone:
            await storage.remove(files.prefix)
        removed += gone
    return removed


async def gone_since(database: Database, job_id: int, number: int) -> datetime | None:
    """Return when the artifacts of a step were removed; None if they were not."""
    async with database.read() as connection:
        at: datetime | None = await connection.scalar(
            select(steps.c.artifacts_gone_at).where(
                steps.c.job_id == job_id, steps.c.number == number
            )
        )
    return at


async def _stored(connection: AsyncConnection, sizes: Mapping[str, int]) -> list[_Stored]:
    """Return the files of the ended attempts among these folders."""
    s = steps.c
    columns = s.job_id, s.number, s.artifacts, s.artifacts_gone_at, UNFINISHED.label("unfinished")
    rows = await attempts_by_folder(connection, sizes, *columns)
    return [
        _files(row, folder, sizes[folder])
        for folder, row in rows.items()
        if row.ended_at is not None
    ]


async def attempts_by_folder(
    connection: AsyncConnection, folders: Iterable[str], *columns: ColumnElement[Any]
) -> dict[str, Row[*tuple[Any, ...]]]:
    """Return the attempts of storage folders: `ended_at`, and columns of their steps and jobs."""
    rows_by_folder: dict[str, Row[*tuple[Any, ...]]] = {}
    a = attempts.c
    for batch in _batches([folder for folder in folders if _ATTEMPT.fullmatch(folder)]):
        step_ids = {int(folder.split("/")[1]) for folder in batch}
        rows = await connection.execute(
            select(a.step_id, a.lease, a.ended_at, *columns)
            .join(steps, steps.c.id == a.step_id)
            .join(jobs, jobs.c.id == steps.c.job_id)
            .where(a.step_id.in_(step_ids))
        )
        for row in rows.all():
            # Earlier versions named the folders by the lease.
            names = {attempt_folder(row.step_id, row.lease), f"steps/{row.step_id}/{row.lease.hex}"}
            rows_by_folder |= dict.fromkeys(names.intersection(batch), row)
    return rows_by_folder


def _files(row: Row[*tuple[Any, ...]], prefix: str, size: int) -> _Stored:
    # Searched as text, not parsed: rows that this version cannot read keep their artifacts.
    accepted = row.artifacts_gone_at is None and f'"key":"{prefix}/' in row.artifacts
    place = row.job_id, row.number
    return _Stored(place, prefix, size, row.ended_at, accepted, not row.unfinished)


async def _needed(connection: AsyncConnection) -> set[Place]:
    """Return the steps that unfinished jobs reference in other jobs."""
    # A reference to another job contains `"job":N`, so that few specs have to be parsed.
    named = or_(*(steps.c.spec.contains(f'"job":{digit}') for digit in range(1, 10)))
    specs = await connection.scalars(select(steps.c.spec).join(jobs).where(UNFINISHED, named))
    places = {
        (needed.ref.job, needed.ref.step)
        for text in specs.all()
        if not isinstance(spec := views.spec_of(text), Failure)
        for needed in spec.inputs()
        if needed.ref.job is not None
    }
    return await numbered(connection, places)


async def _mark(
    connection: AsyncConnection, files: OldFiles, needed: set[Place], now: datetime
) -> bool:
    """Mark the files as removed, unless they are needed by now or were replaced."""
    if (files.job, files.step) in needed:
        return False
    unfinished = exists(select(jobs.c.id).where(jobs.c.id == files.job, UNFINISHED))
    marked = await connection.execute(
        update(steps)
        .where(steps.c.job_id == files.job, steps.c.number == files.step)
        .where(steps.c.artifacts.contains(files.prefix), ~unfinished)
        .values(artifacts_gone_at=now)
    )
    return marked.rowcount == 1


# --- logs ---------------------------------------------------------------------------------


async def old_logs(
    database: Database, policy: ArtifactPolicy, now: datetime | None = None
) -> list[LoggedAttempt]:
    """Return the logs of jobs that finished long ago; the artifact step.log has the same text."""
    before = (now or datetime.now(UTC)) - policy.log_age
    e = events.c
    size = func.sum(func.length(e.data))
    query = (
        select(e.job_id, e.step, e.attempt, size, func.max(e.id))
        .join(jobs, jobs.c.id == e.job_id)
        .where(e.kind == "log", ~UNFINISHED, jobs.c.updated_at < before)
        .group_by(e.job_id, e.step, e.attempt)
        .having(size > SHORT_LOG)
    )
    async with database.read() as connection:
        rows = (await connection.execute(query)).all()
    return [
        LoggedAttempt(job=job, step=step, attempt=attempt, bytes=size, last=last)
        for job, step, attempt, size, last in rows
    ]


async def remove_logs(database: Database, logs: Sequence[LoggedAttempt]) -> None:
    """Remove logs from the database; the last event of each stays, with a note."""
    e = events.c
    older = (
        delete(events)
        .where(e.job_id == bindparam("job"), e.step == bindparam("number"))
        .where(e.attempt == bindparam("try"), e.kind == "log", e.id < bindparam("last"))
    )
    note = update(events).where(e.id == bindparam("last")).values(data=bindparam("note"))
    for batch in _batches(logs):
        rows = [{"job": o.job, "number": o.step, "try": o.attempt, "last": o.last} for o in batch]
        notes = [
            {"last": o.last, "note": json.dumps({"attempt": o.attempt, "text": NOTE})}
            for o in batch
        ]
        async with database.write() as connection:
            await connection.execute(older, rows)
            await connection.execute(note, notes)


def _batches(all_: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(all_), _BATCH):
        yield all_[start : start + _BATCH]
