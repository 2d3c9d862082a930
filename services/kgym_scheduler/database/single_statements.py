"""Statements on PostgreSQL that are each a transaction of their own: one round trip, no more.

SQLAlchemy puts a statement together, once; asyncpg sends it. A call that takes one or two of
these takes a third of the time, here and in the database, that it takes as a transaction of
SQLAlchemy's. Nothing is locked between two of them: what the second writes has to hold on to
what the first has read (see `bulk.Guard`).
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql import asyncpg as sqlalchemy_asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

CLOSE_SECONDS = 1.0


class Found(asyncpg.Record):  # type: ignore[misc]
    """A row, whose columns are attributes as in SQLAlchemy's."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Rows(list[Found]):
    """What a statement returns; has of SQLAlchemy's results what is asked for here."""

    def all(self) -> list[Found]:
        """Return all rows, in the order of the statement."""
        return self

    def one(self) -> Found:
        """Return the only row; any other number of rows is an error."""
        (row,) = self
        return row


class Singles:
    """Connections for such statements, opened as they are needed, and kept."""

    dialect = sqlalchemy_asyncpg.dialect()  # type: ignore[no-untyped-call]

    def __init__(self, dsn: str, options: Mapping[str, Any]) -> None:
        self._dsn = dsn
        self._options = options
        self._idle: list[asyncpg.Connection] = []
        self._closed = False

    async def execute(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Rows:
        """Execute a statement and commit it; return its rows.

        It is put together once for each statement object.
        """
        return await self.fetch(*_put_together(statement, values or {}))

    async def fetch(self, sql: str, given: Sequence[Any]) -> Rows:
        """Execute a statement with parameters by number, and commit it; return its rows."""
        connection = await self._take()
        try:
            return Rows(await connection.fetch(sql, *given, record_class=Found))
        finally:
            if self._closed:
                connection.terminate()
            self._idle.append(connection)

    async def scalar(self, statement: Executable) -> Any:
        """Return the only value of the only row, or None."""
        rows = await self.execute(statement)
        return rows[0][0] if rows else None

    async def close(self) -> None:
        """Close all connections; those that are in use, after that."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError):
                await self._idle.pop().close(timeout=CLOSE_SECONDS)

    async def _take(self) -> asyncpg.Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connected(self._dsn, **self._options)


async def connected(dsn: str, **options: Any) -> asyncpg.Connection:
    """Connect; cancelled meanwhile, do so to the end, as the driver cannot be broken off."""
    connecting = asyncio.ensure_future(asyncpg.connect(dsn, **options))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError):
            (await connecting).terminate()
        raise


Connection = AsyncConnection | Singles
"""What statements are given to."""


async def the_row(connection: Connection, sql: str, given: Sequence[Any]) -> Sequence[Any]:
    """Return the only row of a statement of PostgreSQL's, with parameters by number."""
    if isinstance(connection, Singles):
        return (await connection.fetch(sql, given)).one()
    return (await connection.exec_driver_sql(sql, tuple(given))).one()


_compiled = WeakKeyDictionary[Executable, tuple[SQLCompiler, str]]()


def _put_together(statement: Executable, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the statement's text and what it takes, in order."""
    if (known := _compiled.get(statement)) is None:
        compiled = statement.compile(dialect=Singles.dialect)  # type: ignore[attr-defined]
        known = _compiled[statement] = compiled, str(compiled)
    compiled, sql = known
    if compiled.post_compile_params:
        expanded = compiled.construct_expanded_state(dict(values))
        return expanded.statement, expanded.positional_parameters
    names, fixed = compiled.positiontup or (), compiled.params
    return sql, [values[name] if name in values else fixed[name] for name in names]
