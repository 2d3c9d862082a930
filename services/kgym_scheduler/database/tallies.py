"""How many attempts ended in each minute and hour, and how: counted once, when the time is over.

A minute is counted two minutes after it is over: what was to be committed in it, is. To count it
twice, by two schedulers, changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.statistics import AttemptCount, Piece, Statistics, StatisticsFilter
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import attempts, steps, tallies

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SETTLED = timedelta(minutes=2)
"""How long after its end a minute is counted: no transaction lasts as long."""
AT_ONCE = timedelta(hours=1)
"""So much time is counted by one call, at most: nobody is answered while rows are made of it."""
KEPT_MINUTES = timedelta(days=1)
"""How long minutes are kept beside their hours."""
PIECES: dict[Piece, timedelta] = {"minute": MINUTE, "hour": HOUR, "day": DAY}
FARTHEST: dict[Piece, timedelta] = {
    "minute": timedelta(hours=6),
    "hour": timedelta(days=14),
    "day": timedelta(days=366),
}
ROWS = 10_000
"""Counts in one answer."""
Counted = Literal["minute", "hour"]
_SECONDS: dict[Counted, int] = {"minute": 60, "hour": 3600}
_WHAT = ("kind", "outcome", "cause", "reason", "cached")


class Tallies:
    """Counts attempts, and tells the counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, now: datetime) -> bool:
        """Count the minutes and hours that are over; return whether there are more to count."""
        end = _begin(now - SETTLED, MINUTE)
        async with self._database.read() as connection:
            begin = await self._uncounted(connection)
            if begin is None or begin >= end:
                return False
            until = min(end, begin + AT_ONCE)
            minutes = _minutes((await connection.execute(_ended(connection, begin, until))).all())
        async with self._database.write() as connection:
            await _add(connection, minutes)
            await self._add_hours(connection, until)
            old = _begin(until, HOUR) - KEPT_MINUTES
            minute = tallies.c.seconds == _SECONDS["minute"]
            await connection.execute(delete(tallies).where(minute, tallies.c.at < old))
        return until < end

    async def told(self, wanted: StatisticsFilter, now: datetime) -> Statistics:
        """Return the counts of a time."""
        until = _begin(now - SETTLED, MINUTE)
        unit = PIECES[wanted.step]
        farthest = now - FARTHEST[wanted.step]
        since = _begin(max(wanted.since or farthest, farthest), unit)
        async with self._database.read() as connection:
            if wanted.step == "minute":
                rows = await _read(connection, "minute", since)
            else:  # the hour that is not over, by its minutes
                last = await _newest(connection, "hour")
                rest = since if last is None else max(since, last + HOUR)
                minutes = await _read(connection, "minute", rest)
                if wanted.step == "hour":
                    rows = await _read(connection, "hour", since)
                else:
                    rows = await _read_days(connection, since)
                rows = _added(rows + minutes, unit)
        rows.sort(key=lambda row: (row["at"], *(row[name] for name in _WHAT)))
        shown = rows[-ROWS:]
        return Statistics(
            since=since,
            until=until,
            step=wanted.step,
            counts=[_count(row) for row in shown],
            cut=len(rows) > len(shown),
        )

    async def _uncounted(self, connection: AsyncConnection) -> datetime | None:
        """Return the first minute with attempts that are not counted; None without any."""
        query = select(attempts.c.ended_at).where(attempts.c.ended_at.is_not(None))
        if (last := await _newest(connection, "minute")) is not None:
            query = query.where(attempts.c.ended_at >= last + MINUTE)
        elif (last := await _newest(connection, "hour")) is not None:
            query = query.where(attempts.c.ended_at >= last + HOUR)
        ordered = query.order_by(attempts.c.ended_at).limit(1)
        first: datetime | None = await connection.scalar(ordered)
        return first and _begin(first, MINUTE)

    async def _add_hours(self, connection: AsyncConnection, until: datetime) -> None:
        """Count the hours that are over, by their minutes."""
        last = await _newest(connection, "hour")
        query = select(tallies).where(
            tallies.c.seconds == _SECONDS["minute"], tallies.c.at < _begin(until, HOUR)
        )
        if last is not None:
            query = query.where(tallies.c.at >= last + HOUR)
        minutes = (await connection.execute(query)).all()
        await _add(connection, _added((dict(row._mapping) for row in minutes), HOUR))


def _begin(at: datetime, unit: timedelta) -> datetime:
    """Return when the minute or hour of this time began."""
    epoch = datetime.fromtimestamp(0, UTC)
    return epoch + (at - epoch) // unit * unit


def _ended(connection: AsyncConnection, since: datetime, until: datetime) -> Any:
    """Return the attempts that ended in a time, counted by minute."""
    a = attempts.c
    if connection.dialect.name == "postgresql":
        minute = func.to_char(func.timezone("UTC", a.ended_at), "YYYY-MM-DD HH24:MI")
    else:
        minute = func.strftime("%Y-%m-%d %H:%M", a.ended_at)
    seconds = seconds_between(connection.dialect.name, a.started_at, a.ended_at)
    by = (minute.label("at"), steps.c.kind, a.outcome, a.cause, a.reason, a.cached)
    return (
        select(*by, func.count().label("attempts"), func.sum(seconds).label("took"))
        .join(steps, steps.c.id == a.step_id)
        .where(a.ended_at >= since, a.ended_at < until)
        .group_by(*by)
    )


def seconds_between(
    dialect: str, begin: ColumnElement[Any], end: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Return the seconds between two times, NULL where one is, in this dialect's words."""
    if dialect == "postgresql":
        return func.extract("epoch", end - begin)
    return (func.julianday(end) - func.julianday(begin)) * 86400


def _minutes(rows: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    return [
        {
            "seconds": _SECONDS["minute"],
            "at": datetime.fromisoformat(row.at).replace(tzinfo=UTC),
            "kind": row.kind,
            "outcome": row.outcome,
            "cause": row.cause or "",
            "reason": row.reason or "",
            "cached": "" if row.cached is None else str(row.cached).lower(),
            "attempts": row.attempts,
            "took": max(0.0, float(row.took or 0)),
        }
        for row in rows
    ]


def _added(rows: Iterable[Mapping[str, Any]], unit: timedelta) -> list[dict[str, Any]]:
    """Return the counts of shorter times as those of the hours or days that they are in."""
    pieces: dict[tuple[Any, ...], dict[str, Any]] = {}
    seconds = int(unit.total_seconds())
    for row in rows:
        at = _begin(row["at"], unit)
        new = {**row, "seconds": seconds, "at": at, "attempts": 0, "took": 0.0}
        piece = pieces.setdefault((at, *(row[name] for name in _WHAT)), new)
        piece["attempts"] += row["attempts"]
        piece["took"] += row["took"]
    return list(pieces.values())


async def _add(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        await connection.execute(insert(tallies).on_conflict_do_nothing(), [*rows])


async def _newest(connection: AsyncConnection, step: Counted) -> datetime | None:
    """Return the last minute or hour in which anything was counted."""
    of = tallies.c.seconds == _SECONDS[step]
    query = select(tallies.c.at).where(of).order_by(tallies.c.at.desc()).limit(1)
    found: datetime | None = await connection.scalar(query)
    return found


async def _read(
    connection: AsyncConnection, step: Counted, since: datetime
) -> list[dict[str, Any]]:
    query = (
        select(tallies)
        .where(tallies.c.seconds == _SECONDS[step], tallies.c.at >= since)
        .order_by(tallies.c.at.desc())
        .limit(ROWS + 1)
    )
    return [dict(row._mapping) for row in (await connection.execute(query)).all()]


async def _read_days(connection: AsyncConnection, since: datetime) -> list[dict[str, Any]]:
    """Return the counts of the hours of each day together."""
    if connection.dialect.name == "postgresql":
        day = func.to_char(func.timezone("UTC", tallies.c.at), "YYYY-MM-DD")
    else:
        day = func.strftime("%Y-%m-%d", tallies.c.at)
    label = day.label("day")
    by = (label, *(tallies.c[name] for name in _WHAT))
    query = (
        select(*by, func.sum(tallies.c.attempts).label("attempts"), func.sum(tallies.c.took))
        .where(tallies.c.seconds == _SECONDS["hour"], tallies.c.at >= since)
        .group_by(*by)
        .order_by(label.desc())
        .limit(ROWS + 1)
    )
    return [
        {
            **dict(zip(_WHAT, row[1:-2], strict=True)),
            "at": datetime.fromisoformat(row[0]).replace(tzinfo=UTC),
            "attempts": row[-2],
            "took": row[-1],
        }
        for row in (await connection.execute(query)).all()
    ]


def _count(row: Mapping[str, Any]) -> AttemptCount:
    return AttemptCount(
        at=row["at"],
        kind=row["kind"],
        outcome=row["outcome"],
        cause=row["cause"] or None,
        reason=row["reason"] or None,
        cached={"true": True, "false": False}.get(row["cached"]),
        attempts=row["attempts"],
        seconds=row["took"],
    )
