"""One statement of PostgreSQL that writes many rows of many tables, or none.

Its parts are CTEs. Where a part has one row, its values are parameters; the rows of a longer one
come as one array a column. So it takes one round trip whatever the number of rows, and needs no
transaction around it. What its text depends on is its shape: it is put together once for each.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

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
_PLACES = {"queue", "new_job", "new_step"}
"""What a row has instead of a column: the number of another row, or queue, of the statement."""
_NEW_JOB = "(SELECT ids FROM numbered)[new.new_job]"
_TURN = "new.turn + coalesce((SELECT before FROM given)[new.queue], 0)"
_STEP_IDS = "(SELECT array_agg(id ORDER BY number) FROM {})"
_NEW_STEP = "(SELECT id FROM {} WHERE number = new.new_step)"
_NAME = re.compile(r":(\w+)")


@dataclass(frozen=True, slots=True)
class Guard:
    """What has to hold, or nothing is written: a query of one truth.

    It is asked first of all: what it locks is locked before any row is touched.
    """

    query: str
    values: Row


class _Words(NamedTuple):
    """A part, or something asked, in SQL with named parameters."""

    sql: str
    names: tuple[str, ...]


class _Insertion(NamedTuple):
    table: Table
    names: tuple[str, ...]
    many: bool
    once: bool
    numbered: bool


class _Change(NamedTuple):
    table: Table
    where: tuple[str, ...]
    names: tuple[str, ...]
    many: bool


class _Shape(NamedTuple):
    """All that the text of a statement depends on, in the order of its values."""

    guard: _Words | None
    turns: int
    jobs: bool
    parts: tuple[_Words | _Insertion | _Change, ...]
    asked: tuple[_Words, ...]


class Wholesale:
    """The statement while it is put together: turns first, then jobs, then all else."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = None if guard is None else _Words(guard.query, tuple(guard.values))
        self._values: list[Any] = [] if guard is None else list(guard.values.values())
        self._queues: dict[object, int] = {}
        self._numbered = False
        self._parts: list[_Words | _Insertion | _Change] = []
        self._asked: list[_Words] = []
        self._asked_values: list[Any] = []

    def give_turns(self, wanted: Mapping[fair_queue.Queue, int]) -> None:
        """Give each queue so many turns."""
        for number, queue in enumerate(sorted(wanted), 1):  # the order in which they are locked
            self._queues[queue] = number
            self._values += fair_queue.named(queue, wanted[queue]).values()

    def insert_jobs(self, rows: Sequence[Row], of_first: Sequence[Row]) -> None:
        """Insert jobs, and number them; and steps of the first, whose ids the statement tells.

        A row inserted after that is of the first of these steps if its `new_step` is 0.
        """
        self._numbered = True
        self._values.append(len(rows))
        self.insert(jobs, [{"new_job": number, **row} for number, row in enumerate(rows, 1)])
        if of_first:
            names = tuple(of_first[0])
            self._parts.append(_Insertion(steps, names, len(of_first) > 1, False, numbered=True))
            self._give(of_first)

    def insert(self, table: Table, rows: Sequence[Row], *, once: bool = False) -> None:
        """Insert rows that have the same columns; with `once`, those that are not there."""
        self._parts.append(_Insertion(table, tuple(rows[0]), len(rows) > 1, once, numbered=False))
        self._give(rows)

    def update(self, table: Table, pairs: Sequence[tuple[Row, Row]]) -> None:
        """Set the second part of each pair where the first holds."""
        (where, new), *_ = pairs
        self._parts.append(_Change(table, tuple(where), tuple(new), len(pairs) > 1))
        self._give([{**keyed(where), **new} for where, new in pairs])
        if table is steps:
            self._values.append(len(pairs))

    def part(self, statement: str, values: Row) -> None:
        """Execute a statement that changes something."""
        self._parts.append(_Words(statement, tuple(values)))
        self._values += values.values()

    def ask(self, expression: str, values: Row) -> None:
        """Evaluate an expression; the statement answers with all that are asked, in order."""
        self._asked.append(_Words(expression, tuple(values)))
        self._asked_values += values.values()

    def statement(self) -> tuple[str, Sequence[Any]]:
        """Return the statement and what it takes, in order.

        Its only row tells whether the guard held, the ids of the new jobs, of the steps that
        came with them, and what was asked.
        """
        shape = _Shape(
            self._guard,
            len(self._queues),
            self._numbered,
            tuple(self._parts),
            tuple(self._asked),
        )
        return _text(shape), self._values + self._asked_values

    def _give(self, rows: Sequence[Row]) -> None:
        """Add the values of rows: of one, or of each column an array."""
        if "queue" in rows[0]:
            rows = [{**row, "queue": self._queues.get(row["queue"])} for row in rows]
        if len(rows) == 1:
            self._values += rows[0].values()
        else:
            self._values += ([row[name] for row in rows] for name in rows[0])


def keyed(where: Row) -> dict[str, Any]:
    """Return the values that a row is found by, named apart from those that it gets."""
    return {f"_{name}": value for name, value in where.items()}


@lru_cache(1000)
def _text(shape: _Shape) -> str:
    """Return the statement of this shape, with parameters by number."""
    text = _Text(shape)
    numbers = {name: number for number, name in enumerate(text.names, 1)}
    return _NAME.sub(lambda found: f"${numbers[found[1]]}", text.whole)


class _Text:
    """The text of a statement; parameters of its parts are named apart, in their order."""

    def __init__(self, shape: _Shape) -> None:
        self.names: list[str] = []
        self._steps = ""
        """The part that inserts the steps of a job whose ids are told."""
        self._when = "true" if shape.guard is None else "(SELECT held FROM guard)"
        sure: list[str] = []
        """Truths without which the statement fails."""
        parts: dict[str, str] = {}
        if shape.guard is not None:
            parts["guard"] = f"SELECT ({self._own('guard', shape.guard)}) AS held"
        parts |= self._turns(shape.turns)
        if shape.jobs:
            parts["numbered"] = self._part("numbered", _Words(_NUMBERED, ("count",)))
        for number, part in enumerate(shape.parts):
            name = f"p{number}"
            parts[name] = self._part(name, part)
            if isinstance(part, _Insertion) and part.numbered:
                self._steps = name
            if isinstance(part, _Change) and part.table is steps:
                self.names.append(f"{name}_count")
                sure.append(f"(SELECT count(*) FROM {name}) = CAST(:{name}_count AS bigint)")  # noqa: S608
        asked = [self._own(f"ask{number}", words) for number, words in enumerate(shape.asked)]
        held = self._when
        if sure:  # else divide by zero, which is an error, and so undoes all
            held += f" AND 1 / CASE WHEN {' AND '.join(sure)} THEN 1 ELSE 0 END = 1"
        ids = "(SELECT ids FROM numbered)" if shape.jobs else "NULL"
        ctes = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
        step_ids = _STEP_IDS.format(self._steps) if self._steps else "NULL"
        wanted = ", ".join([held, ids, step_ids, *asked])
        self.whole = f"{f'WITH {ctes} ' if parts else ''}SELECT {wanted}"

    def _turns(self, queues: int) -> dict[str, str]:
        if not queues:
            return {}
        names = [f"turn{number}" for number in range(1, queues + 1)]
        given = {name: self._part(name, _GIVE) for name in names}
        before = ", ".join(f"(SELECT turn FROM {name}) - :{name}_by" for name in names)  # noqa: S608
        return {**given, "given": f"SELECT ARRAY[{before}] AS before"}

    def _part(self, name: str, part: _Words | _Insertion | _Change) -> str:
        match part:
            case _Words():
                return self._own(name, part).replace(fair_queue.ALWAYS, f"WHERE {self._when}")
            case _Insertion():
                after = " ON CONFLICT DO NOTHING" if part.once else ""
                after += " RETURNING id, number" if part.numbered else ""
                return f"{self._insert(name, part)} WHERE {self._when}{after}"
            case _Change():
                return f"{self._update(name, part)} AND {self._when} RETURNING 1"

    def _own(self, part: str, words: _Words) -> str:
        self.names += (f"{part}_{name}" for name in words.names)
        return _NAME.sub(rf":{part}_\1", words.sql)

    def _insert(self, part: str, one: _Insertion) -> str:
        columns = {n: f"new.{n}" for n in one.names if n not in _PLACES}
        if "queue" in one.names:
            columns["turn"] = _TURN
        if "new_job" in one.names:
            columns["id" if one.table is jobs else "job_id"] = _NEW_JOB
        if "new_step" in one.names:
            columns["step_id"] = _NEW_STEP.format(self._steps)
        new = self._new(part, one.table, one.names, many=one.many)
        into, values = ", ".join(columns), ", ".join(columns.values())
        return f"INSERT INTO {one.table.name} ({into}) SELECT {values} FROM {new}"  # noqa: S608

    def _update(self, part: str, one: _Change) -> str:
        names = (*(f"_{name}" for name in one.where), *one.names)
        new = self._new(part, one.table, names, many=one.many)
        columns = {name: f"new.{name}" for name in one.names if name != "queue"}
        if "queue" in one.names:
            columns["turn"] = _TURN
        settings = ", ".join(f"{name} = {value}" for name, value in columns.items())
        table = one.table.name
        # `=` for what is never null: an index serves it
        tests = " AND ".join(
            f"{table}.{n} {'IS NOT DISTINCT FROM' if one.table.c[n].nullable else '='} new._{n}"
            for n in one.where
        )
        return f"UPDATE {table} SET {settings} FROM {new} WHERE {tests}"  # noqa: S608

    def _new(self, part: str, table: Table, names: Iterable[str], *, many: bool) -> str:
        """Return the rows that come as parameters: `_x` is compared with the column x."""
        named = {name: f":{part}_{name}" for name in names}
        self.names += (f"{part}_{name}" for name in names)
        kinds = {name: _kind(table, name.removeprefix("_")) for name in names}
        if many:
            arrays = ", ".join(f"CAST({named[n]} AS {kinds[n]}[])" for n in names)
            return f"unnest({arrays}) AS new({', '.join(names)})"
        values = ", ".join(f"CAST({named[n]} AS {kinds[n]}) AS {n}" for n in names)
        return f"(SELECT {values}) AS new"


_GIVE = _Words(fair_queue.GIVE, ("submitter", "kind", "rank", "by"))


def _kind(table: Table, name: str) -> str:
    if name in _PLACES:
        return "integer"
    return str(table.c[name].type.compile(_POSTGRESQL))
