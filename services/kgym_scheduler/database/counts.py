"""Counts of jobs and attempts by bug, SuiteCache entry, group and time: GROUP BY queries.

Each query reads one covering index and no row. Counting 500,000 jobs takes some tenths of a
second; such results are kept for a few seconds (`KeptCounts`).
"""

# Nothing is counted when jobs are written: counters could be wrong, and would be rows for which
# all transactions wait.

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import groupby
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Row, Select, Text, and_, func, literal_column, select
from sqlalchemy import cast as sql_cast

from kgym.api.bugs import BugFilter, BugPage, BugView, PatchState
from kgym.api.outcomes import UNDER_WAY, Outcome
from kgym.api.statistics import AttemptCount, Piece, Statistics, StatisticsFilter
from kgym.bugs import shipped
from kgym.crash.report.crash_class import crash_class, subsystem
from kgym_scheduler.database import views
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import (
    BUG,
    ENDED,
    ENTRY,
    UNFINISHED,
    attempts,
    facets,
    groups,
    jobs,
    seconds_between,
)

# A count of fewer jobs or attempts is quick and is not kept.
MANY = 20_000
# Maximum age of a kept count.
KEPT_SECONDS = 10.0
# How long a count is remembered to be slow.
_KNOWN_SECONDS = 600.0
# Bugs or entries that are listed: those active last.
MOST = 10_000

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PIECES: Mapping[Piece, timedelta] = {"minute": MINUTE, "hour": HOUR, "day": DAY}
# How far back each view goes: some 360 points, as many as a chart can show.
FARTHEST: Mapping[Piece, timedelta] = {
    "minute": timedelta(hours=6),
    "hour": timedelta(days=14),
    "day": timedelta(days=366),
}
# Attempts are counted once they ended so long ago: no transaction lasts longer.
SETTLED = timedelta(minutes=2)
# Attempt counts in one answer.
ROWS = 10_000
# Attempts, those that ended last, whose median duration is known.
NEWEST = 5_000

T = TypeVar("T")
# Outcomes of jobs that have crashed the kernel with the bug, and of those that may have.
_CRASHED = (Outcome.REPRODUCED, Outcome.CALIBRATED, Outcome.TRACED)
_MAY_CRASH = (Outcome.RESOLVED, Outcome.NOT_RESOLVED, Outcome.INCONCLUSIVE)
# Outcomes of jobs that say something about their bug.
_RAN = (*_CRASHED, Outcome.RESOLVED, Outcome.NOT_RESOLVED, Outcome.NOT_REPRODUCED)
# Of one group: a row per `state` and `outcome`, with `jobs` and `updated_at`.
GroupCounts = Sequence[Row[Any]]


@dataclass(frozen=True, slots=True)
class EntryCount:
    """The jobs that have built or checked on an entry of SuiteCache."""

    outcomes: dict[Outcome, int]
    created_at: datetime
    active_at: datetime


@dataclass(frozen=True, slots=True)
class _Kept:
    """The result of a slow count."""

    value: Any
    begun: float

    @property
    def age(self) -> float:
        """Seconds since the count began."""
        return time.monotonic() - self.begun


class KeptCounts:
    """Results of slow counts, kept for a few seconds.

    A counting function returns its result, and how many rows it has counted: `many` rows or more
    make it slow.
    """

    def __init__(self, many: int = MANY) -> None:
        self._many = many
        self._kept: dict[Hashable, _Kept] = {}
        # Slow counts take turns: each occupies one of the few connections that read.
        self._turn = asyncio.Lock()

    async def get(self, key: Hashable, count: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        """Return the result for this key, at most `KEPT_SECONDS` old."""
        kept = self._kept.get(key)
        if kept is None:  # new, or quick the last time
            return await self._count(key, count)
        if kept.age > KEPT_SECONDS:
            async with self._turn:
                if self._kept.get(key) is kept:  # nobody has counted again during the wait
                    return await self._count(key, count)
            return await self.get(key, count)
        return cast(T, kept.value)

    async def _count(self, key: Hashable, count: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        begun = time.monotonic()
        value, rows = await count()
        self._kept = {k: kept for k, kept in self._kept.items() if kept.age < _KNOWN_SECONDS}
        if rows >= self._many:
            self._kept[key] = _Kept(value, begun)
        else:
            self._kept.pop(key, None)
        return value


class Counts:
    """Counts of bugs, entries, groups and attempts in a database."""

    def __init__(self, database: Database, many: int = MANY) -> None:
        self._database = database
        self._kept = KeptCounts(many)
        self._past: dict[Piece, tuple[datetime, list[AttemptCount]]] = {}
        self._past_turn = asyncio.Lock()

    async def unfinished(self, submitter: str) -> int:
        """Count the unfinished jobs of a submitter."""
        async with self._database.read() as connection:
            count = await connection.scalar(
                select(func.count()).where(jobs.c.submitter == submitter, UNFINISHED)
            )
        return count or 0

    async def bugs(self, conditions: BugFilter) -> BugPage:
        """Return a page of the matching bugs, the last active ones first."""
        bugs = await self._kept.get("bugs", self._count_bugs)
        matching = [bug for bug in bugs if _matches(bug, conditions)]
        if conditions.cursor:
            position = views.position(conditions.cursor)
            matching = [bug for bug in matching if _order(bug) < position]
        shown = matching[: conditions.limit]
        more = len(matching) > len(shown)
        return BugPage(bugs=shown, next=views.cursor_at(*_order(shown[-1])) if more else None)

    async def entries(self) -> dict[str, EntryCount]:
        """Return the job counts of SuiteCache entries, by name."""
        return await self._kept.get("entries", self._count_entries)

    async def groups(self, ids: Collection[int]) -> dict[int, GroupCounts]:
        """Return the job counts of groups by id; a group without jobs is left out."""
        key = tuple(sorted(ids))

        async def count() -> tuple[dict[int, GroupCounts], int]:
            async with self._database.read() as connection:
                rows = (await connection.execute(_group_query(key))).all()
            counts = {group: list(own) for group, own in groupby(rows, lambda row: row.group_id)}
            return cast(dict[int, GroupCounts], counts), sum(row.jobs for row in rows)

        return await self._kept.get(key, count)

    async def statistics(self, conditions: StatisticsFilter, now: datetime) -> Statistics:
        """Return how many attempts ended in each minute, hour or day, and how."""
        step, until = conditions.step, _begin(now - SETTLED, MINUTE)
        farthest = now - FARTHEST[step]
        since = _begin(max(conditions.since or farthest, farthest), PIECES[step])

        async def count() -> tuple[list[AttemptCount], int]:
            async with self._past_turn:
                return await self._count_attempts(step, now, until)

        rows = await self._kept.get(("attempts", step), count)
        matching = [row for row in rows if row.at >= since]
        async with self._database.read() as connection:
            medians = (await connection.execute(_median_query())).all()
        return Statistics(
            since=since,
            until=until,
            step=step,
            counts=matching[-ROWS:],
            cut=len(matching) > ROWS,
            median_seconds={row.kind: max(0.0, float(row.seconds)) for row in medians},
        )

    async def _count_bugs(self) -> tuple[list[BugView], int]:
        async with self._database.read() as connection:
            rows = (await connection.execute(_bug_query())).all()
        # In a thread: classifying thousands of titles would block the event loop.
        bugs = await asyncio.to_thread(lambda: sorted(map(_bug, rows), key=_order, reverse=True))
        return bugs, sum(bug.jobs for bug in bugs)

    async def _count_entries(self) -> tuple[dict[str, EntryCount], int]:
        async with self._database.read() as connection:
            rows = (await connection.execute(_subject_query(ENTRY, "entry:"))).all()
        counts = {
            row.name: EntryCount(_outcomes(row), row.created_at, row.active_at) for row in rows
        }
        return counts, sum(row.jobs for row in rows)

    async def _count_attempts(
        self, step: Piece, now: datetime, until: datetime
    ) -> tuple[list[AttemptCount], int]:
        """Return the attempt counts in order of time, and how many attempts were read for them."""
        unit = PIECES[step]
        farthest = _begin(now - FARTHEST[step], unit)
        known_until, known = self._past.get(step, (farthest, []))
        begin = max(known_until, farthest)
        async with self._database.read() as connection:
            query = _attempt_query(step, begin, until)
            rows = (await connection.execute(query)).all()
        counted = [
            *(row for row in known if row.at >= farthest),
            *sorted(map(_attempt, rows), key=_by_time),
        ]
        counted = counted[-ROWS - 1 :]
        read = sum(row.attempts for row in rows)
        if known or read >= MANY:
            # Past pieces do not change. The first count after a start may read a million
            # attempts, which takes seconds; later ones read those of the last piece.
            over = max(begin, _begin(until, unit))
            self._past[step] = over, [row for row in counted if row.at < over]
        return counted, read


def _subject_query(subject: ColumnElement[bool], prefix: str) -> Select[Any]:
    """Return the query for the jobs of bugs or entries, a row for each name, active last first."""
    f = facets.c
    # The inner query reads the index in its order and leaves a few rows of each name.
    by = select(
        *(f.facet, f.state, f.outcome),
        func.count().label("jobs"),
        func.min(f.created_at).label("created_at"),
        func.max(func.coalesce(f.moved_at, f.created_at)).label("active_at"),
        func.max(f.job_id).label("newest"),
    )
    by = by.where(subject, f.facet != prefix).group_by(f.facet, f.state, f.outcome)
    p = by.subquery().c
    number, newest = func.sum(p.jobs), func.max(p.newest)
    active_at = func.max(p.active_at).label("active_at")
    return (
        select(
            func.substr(p.facet, len(prefix) + 1).label("name"),
            number.label("jobs"),
            *(
                number.filter(_has_outcome(p, outcome)).label(f"outcome_{outcome}")
                for outcome in Outcome
            ),
            newest.filter(p.outcome == Outcome.RESOLVED).label("resolved_job"),
            newest.filter(p.outcome.in_(_RAN)).label("judged_job"),
            func.coalesce(
                newest.filter(p.outcome.in_(_CRASHED)), newest.filter(p.outcome.in_(_MAY_CRASH))
            ).label("crashed_job"),
            func.min(p.created_at).label("created_at"),
            active_at,
        )
        .group_by(p.facet)
        .order_by(active_at.desc())
        .limit(MOST)
    )


def _has_outcome(columns: Any, outcome: Outcome) -> ColumnElement[bool]:
    """Return the test for an outcome, which is only stored once a job has ended."""
    states = [state for state, shown in UNDER_WAY.items() if shown is outcome]
    test: ColumnElement[bool] = columns.outcome == outcome
    return columns.state.in_(states) if states else test


def _bug_query() -> Select[Any]:
    """Return the query for all bugs, with the last outcome and crash of each."""
    bugs = _subject_query(BUG, "tag:bug=").subquery()
    judged, crashed = jobs.alias("judged"), jobs.alias("crashed")
    return select(
        bugs,
        *(judged.c.outcome, judged.c.updated_at.label("judged_at")),
        # `crash` identifies the bug; `title` is that of the run that decided the verdict.
        func.coalesce(crashed.c.crash, crashed.c.title, judged.c.crash, judged.c.title).label(
            "title"
        ),
        func.coalesce(crashed.c.guilty_file, judged.c.guilty_file).label("guilty_file"),
    ).select_from(
        bugs.outerjoin(judged, judged.c.id == bugs.c.judged_job).outerjoin(
            crashed, crashed.c.id == bugs.c.crashed_job
        )
    )


def _outcomes(row: Row[Any]) -> dict[Outcome, int]:
    """Return the counts by outcome, without zeros."""
    counts = {outcome: int(row._mapping[f"outcome_{outcome}"] or 0) for outcome in Outcome}
    return {outcome: number for outcome, number in counts.items() if number}


def _bug(row: Row[Any]) -> BugView:
    outcomes = _outcomes(row)
    title, file = row.title, row.guilty_file
    if (known := shipped.by_name().get(row.name)) is not None:
        title, file = known.title, next(iter(known.files), None)
    tried: PatchState = "unresolved" if Outcome.NOT_RESOLVED in outcomes else "untried"
    return BugView(
        name=row.name,
        crash_class=(crash_class(title) or None) if title else None,
        subsystem=(subsystem(file) or None) if file else None,
        title=title,
        jobs=int(row.jobs),
        outcomes=outcomes,
        patch="resolved" if Outcome.RESOLVED in outcomes else tried,
        resolved_job=row.resolved_job,
        outcome=row.outcome and Outcome(row.outcome),
        judged_at=row.judged_at,
        judged_job=row.judged_job,
        created_at=row.created_at,
        active_at=row.active_at,
    )


def _matches(bug: BugView, conditions: BugFilter) -> bool:
    equal = (
        *((conditions.name, bug.name), (conditions.crash_class, bug.crash_class)),
        *((conditions.outcome, bug.outcome), (conditions.patch, bug.patch)),
    )
    if any(value is not None and value != own for value, own in equal):
        return False
    if (folder := conditions.subsystem) is not None:
        own = bug.subsystem or ""
        if own != folder and not own.startswith(f"{folder}/"):
            return False
    words = f"{bug.name}\n{bug.title or ''}"
    return conditions.text is None or conditions.text.casefold() in words.casefold()


def _order(bug: BugView) -> tuple[datetime, int]:
    """Return the sort key of a bug; the hash orders bugs that were active at the same time."""
    return bug.active_at, int.from_bytes(blake2b(bug.name.encode(), digest_size=7).digest())


def _group_query(ids: Collection[int]) -> Select[Any]:
    kinds = (groups.c.id, jobs.c.state, jobs.c.outcome)
    same = and_(jobs.c.submitter == groups.c.submitter, jobs.c.group_name == groups.c.name)
    return (
        select(
            groups.c.id.label("group_id"),
            *kinds[1:],
            func.count().label("jobs"),
            func.max(jobs.c.updated_at).label("updated_at"),
        )
        .join(jobs, same)
        .where(groups.c.id.in_(list(ids)))
        .group_by(*kinds)
        .order_by(groups.c.id)
    )


def _attempt_query(step: Piece, begin: datetime, end: datetime) -> Select[Any]:
    """Return the query for the attempts that ended in a time, the latest pieces first."""
    a = attempts.c
    # As text, a time begins with its day, hour and minute: 2026-11-26 16:30.
    length = {"day": "10", "hour": "13", "minute": "16"}[step]
    moment = sql_cast(a.ended_at, Text)
    piece = func.substr(moment, literal_column("1"), literal_column(length))
    by = (piece.label("at"), a.kind, a.outcome, a.cause, a.reason, a.cached)
    seconds = func.sum(seconds_between(a.started_at, a.ended_at))
    return (
        select(*by, func.count().label("attempts"), seconds.label("seconds"))
        .where(a.ended_at.is_not(None), a.ended_at >= begin, a.ended_at < end)
        .group_by(*by)
        .order_by(by[0].desc())
        .limit(ROWS + 1)
    )


def _median_query() -> Select[Any]:
    """Return the query for the median seconds of the newest successful attempts, by kind."""
    a = attempts.c
    seconds = seconds_between(a.started_at, a.ended_at).label("seconds")
    newest = select(a.kind, a.outcome, seconds).where(ENDED).order_by(a.ended_at.desc())
    n = newest.limit(NEWEST).subquery().c
    place = func.row_number().over(partition_by=n.kind, order_by=n.seconds).label("place")
    number = func.count().over(partition_by=n.kind).label("number")
    by_length = select(n.kind, n.seconds, place, number).where(n.outcome == "succeeded")
    b = by_length.subquery().c
    # The middle one, or the two in the middle of an even number.
    middle = (2 * b.place).between(b.number, b.number + 2)
    return select(b.kind, func.avg(b.seconds).label("seconds")).where(middle).group_by(b.kind)


def _attempt(row: Row[Any]) -> AttemptCount:
    at = datetime.fromisoformat(row.at).replace(tzinfo=UTC)
    seconds = max(0.0, float(row.seconds or 0))
    return AttemptCount(**{**row._mapping, "at": at, "seconds": seconds})


def _by_time(row: AttemptCount) -> tuple[Any, ...]:
    return row.at, row.kind, row.outcome, row.cause or "", row.reason or "", str(row.cached)


def _begin(at: datetime, unit: timedelta) -> datetime:
    """Return the start of the minute, hour or day of this time."""
    epoch = datetime.fromtimestamp(0, UTC)
    return epoch + (at - epoch) // unit * unit
