"""Writing statements that several modules share."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Table, Update, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.errors import InfrastructureError
from kgym_scheduler.database.tables import PROGRESS, QUEUED, events, steps

Row = Mapping[str, Any]
# No notice is sent for a step whose lane has so many queued steps. Its workers are busy then, and
# claim by themselves when a slot becomes free. More than one, because a concurrent claim may empty
# the lane.
NOTIFY_BELOW = 32
_WAITING = select(func.count()).select_from(
    select(steps.c.id)
    .where(QUEUED, steps.c.lane == bindparam("lane"))
    .limit(NOTIFY_BELOW)
    .subquery()
)


async def update_rows(
    connection: AsyncConnection, table: Table, rows: Sequence[tuple[Row, Row]]
) -> None:
    """Update one row for each pair of key and new values; all pairs have the same columns.

    Raises InfrastructureError `change_raced` if a key matches no row.
    """
    if not rows:
        return
    statement = _update(table, tuple(rows[0][0]), tuple(rows[0][1]))
    values = [{**{f"_{name}": key[name] for name in key}, **new} for key, new in rows]
    result = await connection.execute(statement, values if len(values) > 1 else values[0])
    # asyncpg reports no row count of an executemany (-1). No row can be missed there: the jobs are
    # locked, and every transaction that changes a step locks its job first.
    if 0 <= result.rowcount < len(rows):
        message = f"a row of {table.name} was changed by another at the same moment"
        raise InfrastructureError("change_raced", message)


@cache
def _update(table: Table, keys: tuple[str, ...], names: tuple[str, ...]) -> Update:
    # `=` for columns that are never null: PostgreSQL uses no index for IS NOT DISTINCT FROM.
    matches = [
        table.c[name].is_not_distinct_from(bindparam(f"_{name}"))
        if table.c[name].nullable
        else table.c[name] == bindparam(f"_{name}")
        for name in keys
    ]
    return update(table).where(*matches).values({name: bindparam(name) for name in names})


async def forget_progress(connection: AsyncConnection, places: Sequence[tuple[int, int]]) -> None:
    """Delete the progress events of steps, each given by job and number."""
    e = events.c
    if places:
        of_steps = [and_(e.job_id == job_id, e.step == number) for job_id, number in places]
        await connection.execute(delete(events).where(PROGRESS, or_(*of_steps)))


async def lanes_to_notify(connection: AsyncConnection, lanes: Collection[int]) -> set[int]:
    """Return the lanes with so few queued steps that workers are notified of another one."""
    return {
        lane
        for lane in sorted(lanes)
        if (await connection.scalar(_WAITING, {"lane": lane}) or 0) < NOTIFY_BELOW
    }
