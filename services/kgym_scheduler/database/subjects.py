"""What jobs are about, bugs and entries of SuiteCache: counted by what has changed.

Nothing counts along where jobs are submitted and end: a row that every job of a bug writes would
let them wait for each other. Instead the log of all changes is read behind them, a piece at a
time, from a place that the database keeps. Each job is held against how it was counted last,
so it does not matter how often it is read, nor in how many pieces; and the same reading fills
the tables after an upgrade, from the first event on. Of several schedulers, one counts a piece:
the others find the place moved, and write nothing.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Row, Select, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.suitecache import ENTRY
from kgym.bugs import shipped
from kgym.bugs.shipped import ShippedBug
from kgym.crash.report.crash_class import crash_class, subsystem
from kgym.errors import UserError
from kgym_scheduler.database.change_log import ChangeLog
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import (
    attempts,
    facets,
    jobs,
    readers,
    steps,
    subject_jobs,
    subjects,
)

AT_ONCE = 500
"""Changes that are counted in one transaction: on SQLite, all others that write wait for it."""
BUG = "tag:bug="
"""How the facets begin that name bugs."""
_NAME = 96
_NUMBERED: BindParameter[int] = bindparam("jobs", expanding=True)
_JOBS = select(
    *(jobs.c[n] for n in ("id", "state", "verdict", "resolved", "created_at", "updated_at")),
    *(jobs.c[n] for n in ("title", "crash", "guilty_file")),
).where(jobs.c.id.in_(_NUMBERED))
_BUGS = select(facets.c.job_id, facets.c.facet).where(
    facets.c.job_id.in_(_NUMBERED), facets.c.facet.startswith(BUG, autoescape=True)
)
_ENTRIES = (
    select(steps.c.job_id, attempts.c.entry)
    .join(attempts, attempts.c.step_id == steps.c.id)
    .where(steps.c.job_id.in_(_NUMBERED), attempts.c.entry.is_not(None))
    .distinct()
)
_COUNTED = (
    select(subject_jobs, subjects.c.kind, subjects.c.name)
    .join(subjects, subjects.c.id == subject_jobs.c.subject_id)
    .where(subject_jobs.c.job_id.in_(_NUMBERED))
)
_POSITION: Select[Any] = select(readers.c.position).where(readers.c.name == "subjects")
# An entry's facet is added behind the change of its job's state, and may have missed the next.
_SETTLE = (
    update(facets)
    .where(
        facets.c.job_id.in_(_NUMBERED),
        facets.c.facet.startswith("entry:", autoescape=True),
        facets.c.state
        != select(jobs.c.state).where(jobs.c.id == facets.c.job_id).scalar_subquery(),
    )
    .values(state=select(jobs.c.state).where(jobs.c.id == facets.c.job_id).scalar_subquery())
)
_KEPT = (
    *("created_at", "active_at", "verdict", "judged_at", "judged_job", "resolved", "unresolved"),
    *("resolved_job", "crash_class", "subsystem", "counts", "title"),
)

Named = tuple[str, str]
"""Kind and name of a subject."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """How a job counts."""

    state: str
    verdict: str | None
    resolved: bool | None


@dataclass(slots=True)
class _Subject:
    """A subject while its jobs are counted."""

    kind: str
    name: str
    id: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, row: Row[Any]) -> "_Subject":
        counts = json.loads(row.counts)
        values = {name: row._mapping[name] for name in _KEPT}
        read = Counter(counts["states"]), Counter(counts["verdicts"])
        return cls(row.kind, row.name, row.id, values, *read)

    @property
    def row(self) -> dict[str, Any]:
        """The columns that change."""
        told = {"states": +self.states, "verdicts": +self.verdicts}
        by = self.values["resolved_job"] if self.values["resolved"] else None
        return {**self.values, "resolved_job": by, "counts": json.dumps(told)}

    def count(self, one: _Counted, by: int) -> None:
        """Count a job, or take it back."""
        self.states[one.state] += by
        if one.verdict is not None:
            self.verdicts[one.verdict] += by
        if one.resolved is not None:
            self.values["resolved" if one.resolved else "unresolved"] += by

    def hear(self, job: Row[Any]) -> None:
        """Learn from a job as it is now."""
        told = self.values
        told["created_at"] = min(told["created_at"], job.created_at)
        told["active_at"] = max(told["active_at"], job.updated_at)
        if job.verdict is not None and _later(job.updated_at, told["judged_at"]):
            told |= {"verdict": job.verdict, "judged_at": job.updated_at, "judged_job": job.id}
        if job.resolved and (told["judged_job"] == job.id or told["resolved_job"] is None):
            told["resolved_job"] = job.id
        if self.kind == "bug":
            self._sort(job.crash or job.title, job.guilty_file)

    def _sort(self, title: str | None, file: str | None) -> None:
        known = _shipped().get(self.name)
        if known is not None:
            title, file = known.title, next(iter(known.files), None)
        if title:
            self.values |= {"title": title, "crash_class": crash_class(title) or None}
        if file and (folder := subsystem(file)):
            self.values["subsystem"] = folder


class Subjects:
    """Counts the jobs of bugs and of entries."""

    def __init__(self, database: Database, log: ChangeLog) -> None:
        self._database = database
        self._log = log

    async def catch_up(self) -> bool:
        """Count the next changes, a piece of them; return whether there are more."""
        end = (await self._log.end()).settled
        async with self._database.read() as connection:
            position = (await connection.execute(_POSITION)).one().position
        if end is None or end <= position:
            return False
        rows, until = await self._log.between(position, end, AT_ONCE)
        piece = _Piece(sorted({row.job_id for row in rows}))
        async with self._database.read() as connection:
            await piece.read(connection)
        async with self._database.write() as connection:
            place = (readers.c.name == "subjects") & (readers.c.position == position)
            moved = await connection.execute(update(readers).where(place).values(position=until))
            if moved.rowcount:
                await piece.write(connection)
        return until < end

    async def counted(self, names: Collection[str]) -> dict[str, Row[Any]]:
        """Return, by name, what is counted of these entries."""
        query = select(subjects).where(subjects.c.kind == "entry", subjects.c.name.in_(names))
        async with self._database.read() as connection:
            return {row.name: row for row in (await connection.execute(query)).all()}


class _Piece:
    """Some jobs: how they are, how they were counted, and what follows for their subjects."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._now: dict[tuple[int, Named], _Counted] = {}
        self._before: dict[tuple[int, Named], tuple[int, _Counted]] = {}
        self._subjects: dict[Named, _Subject] = {}
        self._created: dict[int, datetime] = {}

    async def read(self, connection: AsyncConnection) -> None:
        """Read the jobs and their subjects, and count them."""
        given = {"jobs": self._ids}
        about = defaultdict[int, set[Named]](set)
        for job_id, facet in (await connection.execute(_BUGS, given)).all():
            if name := facet.removeprefix(BUG)[:_NAME]:
                about[job_id].add(("bug", name))
        for job_id, entry in (await connection.execute(_ENTRIES, given)).all():
            if ENTRY.fullmatch(entry):
                about[job_id].add(("entry", entry))
        for row in (await connection.execute(_COUNTED, given)).all():
            counted = _Counted(row.state, row.verdict, row.resolved)
            self._before[row.job_id, (row.kind, row.name)] = row.subject_id, counted
        if not about and not self._before:
            return
        named = set().union(*about.values()) | {named for _, named in self._before}
        for row in (await connection.execute(_named(named))).all():
            self._subjects[row.kind, row.name] = _Subject.read(row)
        found = await connection.execute(_JOBS, given)
        self._count(sorted(found.all(), key=lambda job: job.updated_at), about)

    def _count(self, found: Sequence[Row[Any]], about: Mapping[int, set[Named]]) -> None:
        for (_, named), (_, counted) in self._before.items():
            self._subjects[named].count(counted, -1)
        for job in found:
            self._created[job.id] = job.created_at
            for named in about.get(job.id, ()):
                subject = self._subjects.setdefault(named, _new(named, job))
                counted = _Counted(job.state, job.verdict, job.resolved)
                subject.count(counted, 1)
                self._now[job.id, named] = counted
        for job in found:
            for named in about.get(job.id, ()):
                self._subjects[named].hear(job)

    async def write(self, connection: AsyncConnection) -> None:
        """Write what is counted."""
        if not self._subjects:
            return
        await self._write_subjects(connection)
        await self._write_jobs(connection)
        await self._write_facets(connection)
        empty = [one.id for one in self._subjects.values() if not +one.states]
        if empty:
            await connection.execute(delete(subjects).where(subjects.c.id.in_(empty)))

    async def _write_subjects(self, connection: AsyncConnection) -> None:
        known = [one for one in self._subjects.values() if one.id is not None]
        new = [one for one in self._subjects.values() if one.id is None]
        if known:
            change = update(subjects).where(subjects.c.id == bindparam("_id"))
            change = change.values({name: bindparam(name) for name in _KEPT})
            await connection.execute(change, [{"_id": one.id, **one.row} for one in known])
        if new:
            rows = [{"kind": one.kind, "name": one.name, **one.row} for one in new]
            numbered = insert(subjects).returning(subjects.c.id, sort_by_parameter_order=True)
            ids = (await connection.scalars(numbered, rows)).all()
            for one, number in zip(new, ids, strict=True):
                one.id = number

    async def _write_jobs(self, connection: AsyncConnection) -> None:
        s = subject_jobs.c
        gone = [(key[0], old[0]) for key, old in self._before.items() if key not in self._now]
        if gone:
            await connection.execute(
                delete(subject_jobs).where(tuple_(s.job_id, s.subject_id).in_(gone))
            )
        rows = []
        for (job_id, named), now in self._now.items():
            before = self._before.get((job_id, named))
            if before is None or before[1] != now:
                values = {"state": now.state, "verdict": now.verdict, "resolved": now.resolved}
                rows.append({"job_id": job_id, "subject_id": self._subjects[named].id, **values})
        if rows:
            add = _insert(connection)(subject_jobs)
            changed = {n: add.excluded[n] for n in ("state", "verdict", "resolved")}
            key = ["job_id", "subject_id"]
            upsert = add.on_conflict_do_update(index_elements=key, set_=changed)
            await connection.execute(upsert, rows)

    async def _write_facets(self, connection: AsyncConnection) -> None:
        """Let lists filter by entries: a facet that is new hurts no other transaction."""
        used = [key for key in self._now if key[1][0] == "entry"]
        rows = [
            {
                "job_id": job_id,
                "facet": f"entry:{named[1]}",
                "state": self._now[job_id, named].state,
                "created_at": self._created[job_id],
            }
            for job_id, named in used
            if (job_id, named) not in self._before
        ]
        if rows:
            add = _insert(connection)(facets).on_conflict_do_nothing()
            await connection.execute(add, rows)
        if used:
            await connection.execute(_SETTLE, {"jobs": sorted({job_id for job_id, _ in used})})


def _new(named: Named, job: Row[Any]) -> _Subject:
    values = dict.fromkeys(_KEPT) | {"resolved": 0, "unresolved": 0}
    values |= {"created_at": job.created_at, "active_at": job.updated_at}
    return _Subject(*named, values=values)


def _later(moment: datetime, than: datetime | None) -> bool:
    return than is None or moment >= than


def _named(named: Iterable[Named]) -> Select[Any]:
    return select(subjects).where(tuple_(subjects.c.kind, subjects.c.name).in_(sorted(named)))


def _insert(connection: AsyncConnection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


@cache
def _shipped() -> Mapping[str, ShippedBug]:
    """Return the shipped bugs, by name; none where their tables cannot be read."""
    try:
        return {bug.name: bug for bug in shipped.shipped()}
    except UserError:
        return {}
