"""One statement of PostgreSQL that writes many rows of many tables, or none.

Its parts are CTEs; the rows of a table come as one array a column. So it takes one round trip
whatever the number of rows, and needs no transaction around it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql

from kgym_scheduler.database.tables import jobs, steps
from kgym_scheduler.queue import fair_queue

Row = Mapping[str, Any]
_POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
_NUMBERED = (
    "SELECT array_agg(nextval(pg_get_serial_sequence('jobs', 'id'))) AS ids"  # noqa: S608
    f" FROM generate_series(1, CAST(:count AS integer)) {fair_queue.ALWAYS}"
)
_NEW_JOB = "(SELECT ids FROM numbered)[new.new_job]"
_TURN = "new.turn + coalesce((SELECT before FROM given)[new.queue], 0)"


@dataclass(frozen=True, slots=True)
class Guard:
    """What has to hold, or nothing is written: a query of one truth.

    It is asked first of all: what it locks is locked before any row is touched.
    """

    query: str
    values: Row


class Wholesale:
    """The statement while it is put together; parameters of its parts are named apart."""

    def __init__(self, guard: Guard | None) -> None:
        self._parts: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._when = "true"
        self._sure: list[str] = []
        """Truths without which the statement fails."""
        self._asked: list[str] = []
        self._queues: dict[object, int] = {}
        if guard is not None:
            self._add("guard", f"SELECT ({guard.query}) AS held", guard.values)
            self._when = "(SELECT held FROM guard)"

    def give_turns(self, wanted: Mapping[fair_queue.Queue, int]) -> None:
        """Give each queue so many turns."""
        before = []
        for number, queue in enumerate(sorted(wanted), 1):  # the order in which they are locked
            self._queues[queue] = number
            self._add(f"turn{number}", fair_queue.GIVE, fair_queue.named(queue, wanted[queue]))
            before.append(f"(SELECT turn FROM turn{number}) - :turn{number}_by")  # noqa: S608
        if before:
            self._parts["given"] = f"SELECT ARRAY[{', '.join(before)}] AS before"

    def insert_jobs(self, rows: Sequence[Row]) -> None:
        """Insert jobs, and number them."""
        self._add("numbered", _NUMBERED, {"count": len(rows)})
        self.insert(jobs, [{"new_job": number, **row} for number, row in enumerate(rows, 1)])

    def insert(self, table: Table, rows: Sequence[Row], *, once: bool = False) -> None:
        """Insert rows that have the same columns; with `once`, those that are not there."""
        name = f"p{len(self._parts)}"
        text = _insert(table, tuple(rows[0]), name)
        unless = " ON CONFLICT DO NOTHING" if once else ""
        self._parts[name] = f"{text} WHERE {self._when}{unless}"
        self._values |= self._arrays(name, rows)

    def update(self, table: Table, pairs: Sequence[tuple[Row, Row]]) -> None:
        """Set the second part of each pair where the first holds."""
        name = f"p{len(self._parts)}"
        (where, new), *_ = pairs
        text = _update(table, tuple(where), tuple(new), name)
        self._parts[name] = f"{text} AND {self._when} RETURNING 1"
        rows = [{**keyed(where), **new} for where, new in pairs]
        self._values |= self._arrays(name, rows)
        if table is steps:
            self._sure.append(f"(SELECT count(*) FROM {name}) = CAST(:{name}_count AS bigint)")  # noqa: S608
            self._values[f"{name}_count"] = len(pairs)

    def part(self, statement: str, values: Row) -> None:
        """Execute a statement that changes something."""
        self._add(f"p{len(self._parts)}", statement, values)

    def ask(self, expression: str, values: Row) -> None:
        """Evaluate something."""
        self._asked.append(self._own(f"ask{len(self._asked)}", expression, values))

    def statement(self) -> tuple[str, Row]:
        """Return the statement and what it takes.

        Its only row tells whether the guard held, the ids of the new jobs, and what was asked.
        """
        parts = ", ".join(f"{name} AS ({part})" for name, part in self._parts.items())
        held = self._when
        if self._sure:  # else divide by zero, which is an error, and so undoes all
            held += f" AND 1 / CASE WHEN {' AND '.join(self._sure)} THEN 1 ELSE 0 END = 1"
        ids = "(SELECT ids FROM numbered)" if "numbered" in self._parts else "NULL"
        wanted = ", ".join([held, ids, *self._asked])
        return f"{f'WITH {parts} ' if parts else ''}SELECT {wanted}", self._values

    def _add(self, name: str, statement: str, values: Row) -> None:
        own = self._own(name, statement, values)
        self._parts[name] = own.replace(fair_queue.ALWAYS, f"WHERE {self._when}")

    def _own(self, name: str, statement: str, values: Row) -> str:
        self._values |= {f"{name}_{key}": value for key, value in values.items()}
        return re.sub(r":(\w+)", rf":{name}_\1", statement)

    def _arrays(self, name: str, rows: Sequence[Row]) -> dict[str, list[Any]]:
        columns = {f"{name}_{key}": [row[key] for row in rows] for key in rows[0]}
        if (queues := columns.get(f"{name}_queue")) is not None:
            columns[f"{name}_queue"] = [self._queues.get(queue) for queue in queues]
        return columns


def keyed(where: Row) -> dict[str, Any]:
    """Return the values that a row is found by, named apart from those that it gets."""
    return {f"_{name}": value for name, value in where.items()}


@cache
def _insert(table: Table, names: tuple[str, ...], part: str) -> str:
    columns = {n: f"new.{n}" for n in names if n not in {"queue", "new_job"}}
    if "queue" in names:
        columns["turn"] = _TURN
    if "new_job" in names:
        columns["id" if table is jobs else "job_id"] = _NEW_JOB
    into, values = ", ".join(columns), ", ".join(columns.values())
    return f"INSERT INTO {table.name} ({into}) SELECT {values} FROM {_new(table, names, part)}"  # noqa: S608


@cache
def _update(table: Table, where: tuple[str, ...], values: tuple[str, ...], part: str) -> str:
    new = _new(table, (*(f"_{name}" for name in where), *values), part)
    columns = {name: f"new.{name}" for name in values if name != "queue"}
    if "queue" in values:
        columns["turn"] = _TURN
    settings = ", ".join(f"{name} = {value}" for name, value in columns.items())
    # `=` for what is never null: an index serves it
    tests = " AND ".join(
        f"{table.name}.{n} {'IS NOT DISTINCT FROM' if table.c[n].nullable else '='} new._{n}"
        for n in where
    )
    return f"UPDATE {table.name} SET {settings} FROM {new} WHERE {tests}"  # noqa: S608


def _new(table: Table, names: tuple[str, ...], part: str) -> str:
    """Return rows that come as arrays: `_x` is compared with the column x."""
    arrays = ", ".join(
        f"CAST(:{part}_{name} AS {_kind(table, name.removeprefix('_'))}[])" for name in names
    )
    return f"unnest({arrays}) AS new({', '.join(names)})"


def _kind(table: Table, name: str) -> str:
    if name in {"queue", "new_job"}:
        return "integer"
    return str(table.c[name].type.compile(_POSTGRESQL))
