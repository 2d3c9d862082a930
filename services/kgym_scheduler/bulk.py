"""Many rows of many tables written at once, on SQLite and on PostgreSQL.

PostgreSQL takes the rows of a table as one array a column, and all that a
`Plan` writes as one statement: one round trip, whatever the number of rows.
SQLite, which has no round trips, takes them one by one.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache

from sqlalchemy import Dialect, Table, bindparam, insert, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.database import NEWS

Row = Mapping[str, object]
RING = 32
"""Steps that wait in a lane from which on a further one rings no bell.

Its workers are busy then, and ask by themselves when they have finished
something. It is more than one, because a claim can empty the lane at the same moment.
"""
_WAITING = (
    "(SELECT count(*) FROM (SELECT 1 FROM steps WHERE state = 'queued' AND lane = :{}"  # noqa: S608
    f" LIMIT {RING}) AS waiting)"
)
_parsed = lru_cache(1000)(text)
"""`text`, which looks for parameters in the statement, once for each statement."""
_POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]


async def add_numbered(
    connection: AsyncConnection, table: Table, rows: Sequence[Row]
) -> Sequence[int]:
    """Insert rows that have the same columns; return their ids, which ascend."""
    if connection.dialect.name == "sqlite":
        statement = insert(table).returning(table.c.id, sort_by_parameter_order=True)
        return (await connection.scalars(statement, list(rows))).all()
    statement_text = _insert(table, tuple(rows[0]), "") + " RETURNING id"
    return sorted((await connection.scalars(_parsed(statement_text), _arrays(rows, ""))).all())


class Plan:
    """What a transaction writes, in the end, all at once.

    On PostgreSQL no part sees what another writes, so no two may change one row.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._added: list[tuple[Table, Sequence[Row]]] = []
        self._changed: list[tuple[Table, Sequence[tuple[Row, Row]]]] = []
        self._others: list[tuple[str, Row]] = []
        self._told: Sequence[int] = ()
        self.waiting: dict[int, int] = {}
        """Steps in the lanes that are to be counted, up to RING, before anything is written."""

    def add(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that have the same columns."""
        if rows:
            self._added.append((table, rows))

    def change(self, table: Table, rows: Sequence[tuple[Row, Row]]) -> None:
        """Set the second part of each pair where the first holds; all have the same columns."""
        if rows:
            self._changed.append((table, rows))

    def also(self, statement: str, values: Row) -> None:
        """Execute a statement that changes something."""
        self._others.append((statement, values))

    def tell(self, job_ids: Sequence[int]) -> None:
        """Let those who `Database.listen` know of these jobs, once all is committed."""
        self._told = job_ids

    def count_waiting(self, lanes: Collection[int]) -> None:
        """Count the steps that wait in these lanes."""
        self.waiting = dict.fromkeys(sorted(lanes), 0)

    async def run(self) -> list[int]:
        """Write; return the number of rows that each `change` changed."""
        if self._connection.dialect.name == "sqlite":
            return await self._run_one_by_one()
        parts: list[str] = []
        counts = [
            f"(SELECT count(*) FROM p{number})"  # noqa: S608
            for number in range(len(self._changed))
        ]
        values: dict[str, object] = {}
        for table, pairs in self._changed:
            prefix = f"p{len(parts)}_"
            (where, new), *_ = pairs
            parts.append(_update(table, tuple(where), tuple(new), prefix) + " RETURNING 1")
            values |= _arrays([_flat(*pair) for pair in pairs], prefix)
        for table, rows in self._added:
            prefix = f"p{len(parts)}_"
            parts.append(_insert(table, tuple(rows[0]), prefix))
            values |= _arrays(rows, prefix)
        for statement, named in self._others:
            prefix = f"p{len(parts)}_"
            parts.append(re.sub(r":(\w+)", rf":{prefix}\1", statement))
            values |= {prefix + name: value for name, value in named.items()}
        for number, lane in enumerate(self.waiting):
            counts.append(_WAITING.format(f"lane{number}"))
            values[f"lane{number}"] = lane
        if self._told:
            counts.append("pg_notify(:channel, :told)")
            values |= {"channel": NEWS, "told": " ".join(map(str, self._told))}
        listed = ", ".join(f"p{number} AS ({part})" for number, part in enumerate(parts))
        statement = f"WITH {listed} " if parts else ""
        wanted = ", ".join(counts) or "1"
        done = await self._connection.execute(_parsed(f"{statement}SELECT {wanted}"), values)
        row = list(done.one())
        self.waiting = dict(zip(self.waiting, row[len(self._changed) :], strict=False))
        return row[: len(self._changed)]

    async def _run_one_by_one(self) -> list[int]:
        changed = []
        for lane in self.waiting:
            count = _parsed("SELECT " + _WAITING.format("lane"))
            self.waiting[lane] = await self._connection.scalar(count, {"lane": lane}) or 0
        for table, pairs in self._changed:
            (where, new), *_ = pairs
            statement = (
                update(table)
                .where(*(table.c[n].is_not_distinct_from(bindparam(f"_{n}")) for n in where))
                .values({n: bindparam(n) for n in new})
            )
            done = await self._connection.execute(statement, [_flat(*pair) for pair in pairs])
            changed.append(done.rowcount)
        for table, rows in self._added:
            await self._connection.execute(insert(table), list(rows))
        for text_, values in self._others:
            await self._connection.execute(_parsed(text_), values)
        return changed


def _flat(where: Row, values: Row) -> dict[str, object]:
    return {**{f"_{name}": value for name, value in where.items()}, **values}


def _arrays(rows: Sequence[Row], prefix: str) -> dict[str, object]:
    return {prefix + name: [row[name] for row in rows] for name in rows[0]}


@cache
def _insert(table: Table, names: tuple[str, ...], prefix: str) -> str:
    arrays = ", ".join(_array(table, name, prefix + name) for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({arrays})"  # noqa: S608


@cache
def _update(table: Table, where: tuple[str, ...], values: tuple[str, ...], prefix: str) -> str:
    keys = [f"_{name}" for name in where]
    arrays = [_array(table, n, prefix + key) for n, key in zip(where, keys, strict=True)]
    arrays += [_array(table, name, prefix + name) for name in values]
    settings = ", ".join(f"{name} = new.{name}" for name in values)
    # `=` for what is never null: an index serves it
    tests = " AND ".join(
        f"{table.name}.{name} {'IS NOT DISTINCT FROM' if table.c[name].nullable else '='} new.{key}"
        for name, key in zip(where, keys, strict=True)
    )
    return (
        f"UPDATE {table.name} SET {settings} FROM unnest({', '.join(arrays)})"  # noqa: S608
        f" AS new({', '.join([*keys, *values])}) WHERE {tests}"
    )


def _array(table: Table, column: str, parameter: str) -> str:
    kind = table.c[column].type.compile(_POSTGRESQL)
    return f"CAST(:{parameter} AS {kind}[])"
