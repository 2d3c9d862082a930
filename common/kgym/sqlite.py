"""SQLite settings of all services: durable, with readers that never wait for the writer (WAL).

The same tables are used on PostgreSQL, so their column types behave alike in both.
"""

import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Integer,
    TypeDecorator,
    event,
)

# How long a transaction waits for another process's lock, or for a connection.
BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
# SQLite generates numbers only for `INTEGER PRIMARY KEY`.
Id = BigInteger().with_variant(Integer, "sqlite")


class Utc(TypeDecorator[datetime]):
    """A time in UTC, time-zone aware in Python even if the database stores no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC: SQLite drops the zone."""
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Put the zone back."""
        return value if value is None else value.replace(tzinfo=UTC)


class DurableConnection(sqlite3.Connection):
    """A connection whose settings are applied as part of opening it.

    Applying them may wait for other processes, and drivers open connections in a thread, never in
    the event loop.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open it; raise sqlite3.OperationalError if the file stays locked for BUSY_SECONDS."""
        super().__init__(*args, **kwargs)
        try:
            self.isolation_level = None  # the driver must not begin transactions itself
            self._set_wal_mode()
            for pragma in ("synchronous = FULL", "foreign_keys = ON"):
                self.execute(f"PRAGMA {pragma}")
        except BaseException:
            self.close()
            raise

    def _set_wal_mode(self) -> None:
        until = time.monotonic() + BUSY_SECONDS
        while True:  # SQLite ignores its busy timeout when it changes the mode of a new file
            try:
                self.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                if not busy or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_SECONDS)


def engine_options(connections: int) -> dict[str, Any]:
    """Return the arguments of `create_engine` for a pool of this many connections."""
    return {
        "pool_size": connections,
        "max_overflow": 0,
        "pool_timeout": BUSY_SECONDS,
        "connect_args": {"timeout": BUSY_SECONDS, "factory": DurableConnection},
    }


def begin_by(engine: Engine, statement: str) -> None:
    """Begin all transactions of the engine with this statement."""

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
