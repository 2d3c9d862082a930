"""How long artifacts and logs are kept: artifacts by age and total size, logs by age.

A plan is made first, and shown. What carries it out looks at each thing again,
for jobs go on meanwhile; and the database is told before the files go.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

from sqlalchemy import Row, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.steps import Failure, Strict
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database import views
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import UNFINISHED, attempts, events, jobs, steps
from kgym_scheduler.queue.step_inputs import numbered

# Characters of an attempt's log that stay in the database whatever its age.
SHORT_LOG = 1000
NOTE = "(older than is kept here; see the artifact step.log)\n"
_ATTEMPT = re.compile(r"steps/[0-9]+/[0-9a-f]{32}")
_BATCH = 200

T = TypeVar("T")
Why = Literal["age", "budget", "unaccepted"]
# A step by its job and number.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArtifactPolicy:
    """How long, and how much, artifacts and logs are kept."""

    artifact_age: timedelta = timedelta(days=90)
    """After the attempt has ended."""
    artifact_budget: int = 200 << 30
    """Bytes; beyond it the oldest go."""
    unaccepted_age: timedelta = timedelta(days=1)
    """After the attempt has ended: no step that took it as input still runs then."""
    log_age: timedelta = timedelta(days=30)
    """After the job was last changed."""


class OldFiles(Strict):
    """The files of an attempt that shall go, and why.

    `unaccepted`: its result was never taken, or another attempt has taken its place.
    """

    job: int
    step: int
    prefix: str
    bytes: int
    why: Why


class OldLog(Strict):
    """The log of an attempt that shall go from the database."""

    job: int
    step: int
    attempt: int
    bytes: int
    last: int
    """The event that stays, and says that the log was removed."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The files of an attempt that has ended."""

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
    """Return the files to remove; none that unfinished jobs left or name, and no unknown ones."""
    now = now or datetime.now(UTC)
    sizes = await storage.sizes("steps", 2)
    async with database.read() as connection:
        stored = await _stored(connection, sizes)
        needed = await _needed(connection)
    total = sum(sizes.values())
    found = []
    for one in sorted(stored, key=lambda one: one.ended_at):
        if why := _why(one, policy, now, needed, total):
            total -= one.bytes
            job, step = one.place
            found.append(OldFiles(job=job, step=step, prefix=one.prefix, bytes=one.bytes, why=why))
    return found


def _why(
    one: _Stored, policy: ArtifactPolicy, now: datetime, needed: set[Place], total: int
) -> Why | None:
    if not one.accepted:
        return "unaccepted" if one.ended_at < now - policy.unaccepted_age else None
    if not one.free or one.place in needed:
        return None
    if one.ended_at < now - policy.artifact_age:
        return "age"
    return "budget" if total > policy.artifact_budget else None


async def remove_files(
    database: Database, storage: Storage, found: Sequence[OldFiles], now: datetime | None = None
) -> list[OldFiles]:
    """Remove those of the files that may still be removed; return these."""
    now = now or datetime.now(UTC)
    removed = []
    for batch in _batches(found):
        async with database.write() as connection:
            needed = await _needed(connection)
            gone = [
                one
                for one in batch
                if one.why == "unaccepted" or await _mark(connection, one, needed, now)
            ]
        for one in gone:
            await storage.remove(one.prefix)
        removed += gone
    return removed


async def gone_since(database: Database, job_id: int, number: int) -> datetime | None:
    """Return when the artifacts of a step were removed."""
    async with database.read() as connection:
        at: datetime | None = await connection.scalar(
            select(steps.c.artifacts_gone_at).where(
                steps.c.job_id == job_id, steps.c.number == number
            )
        )
    return at


async def _stored(connection: AsyncConnection, sizes: Mapping[str, int]) -> list[_Stored]:
    """Return the attempts that have ended, of those that these folders belong to."""
    s = steps.c
    found = []
    for batch in _batches([prefix for prefix in sizes if _ATTEMPT.fullmatch(prefix)]):
        leases = {UUID(prefix.rpartition("/")[2]): prefix for prefix in batch}
        rows = await connection.execute(
            select(
                *(attempts.c.lease, attempts.c.ended_at),
                *(s.job_id, s.number, s.artifacts, s.artifacts_gone_at),
                UNFINISHED.label("unfinished"),
            )
            .join(steps, s.id == attempts.c.step_id)
            .join(jobs, jobs.c.id == s.job_id)
            .where(attempts.c.lease.in_(leases), attempts.c.ended_at.is_not(None))
        )
        found += [_one(row, leases[row.lease], sizes[leases[row.lease]]) for row in rows.all()]
    return found


def _one(row: Row[*tuple[Any, ...]], prefix: str, size: int) -> _Stored:
    # As text: a job needs its artifacts even if its spec can no longer be read.
    accepted = row.artifacts_gone_at is None and f'"key":"{prefix}/' in row.artifacts
    place = row.job_id, row.number
    return _Stored(place, prefix, size, row.ended_at, accepted, not row.unfinished)


async def _needed(connection: AsyncConnection) -> set[Place]:
    """Return the steps of other jobs that steps of unfinished jobs name."""
    # A reference to another job reads `"job":N`; few specs have to be parsed.
    named = or_(*(steps.c.spec.contains(f'"job":{digit}') for digit in range(1, 10)))
    specs = await connection.scalars(select(steps.c.spec).join(jobs).where(UNFINISHED, named))
    places = {
        (one.ref.job, one.ref.step)
        for text in specs.all()
        if not isinstance(spec := views.spec_of(text), Failure)
        for one in spec.inputs()
        if one.ref.job is not None
    }
    return await numbered(connection, places)


async def _mark(
    connection: AsyncConnection, one: OldFiles, needed: set[Place], now: datetime
) -> bool:
    """Note that the files are gone, unless they are needed now or were replaced."""
    if (one.job, one.step) in needed:
        return False
    unfinished = exists(select(jobs.c.id).where(jobs.c.id == one.job, UNFINISHED))
    marked = await connection.execute(
        update(steps)
        .where(steps.c.job_id == one.job, steps.c.number == one.step)
        .where(steps.c.artifacts.contains(one.prefix), ~unfinished)
        .values(artifacts_gone_at=now)
    )
    return marked.rowcount == 1


# --- logs ---------------------------------------------------------------------------------


async def old_logs(
    database: Database, policy: ArtifactPolicy, now: datetime | None = None
) -> list[OldLog]:
    """Return the logs of jobs that finished long ago. The artifact step.log holds the same."""
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
        OldLog(job=job, step=step, attempt=attempt, bytes=size, last=last)
        for job, step, attempt, size, last in rows
    ]


async def remove_logs(database: Database, found: Sequence[OldLog]) -> None:
    """Remove them from the database; the last event of each stays, and says so."""
    e = events.c
    older = (
        delete(events)
        .where(e.job_id == bindparam("job"), e.step == bindparam("number"))
        .where(e.attempt == bindparam("try"), e.kind == "log", e.id < bindparam("last"))
    )
    note = update(events).where(e.id == bindparam("last")).values(data=bindparam("note"))
    for batch in _batches(found):
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
