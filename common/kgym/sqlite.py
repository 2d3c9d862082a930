"""How the services use SQLite: durable, with readers that never wait for the writer (WAL).

Their tables are the same on PostgreSQL, so their columns are of types that both hold alike.
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

# How long a transaction waits for its turn: for another process, or for a connection.
BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only `INTEGER PRIMARY KEY`


class Utc(TypeDecorator[datetime]):
    """A time in UTC, aware on the Python side also where the database keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC: SQLite drops the zone."""
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Put the zone back."""
        return value if value is None else value.replace(tzinfo=UTC)


class DurableConnection(sqlite3.Connection):
    """A connection that is ready for use once it is open.

    What it takes may have to wait for other processes, and waits where the connection is opened:
    drivers do that in a thread, never in the event loop.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open it; raise sqlite3.OperationalError if others keep the file for BUSY_SECONDS."""
        super().__init__(*args, **kwargs)
        try:
            self.isolation_level = None  # the driver must not begin transactions by itself
            self._keep_a_log()
            for pragma in ("synchronous = FULL", "foreign_keys = ON"):
                self.execute(f"PRAGMA {pragma}")
        except BaseException:
            self.close()
            raise

    def _keep_a_log(self) -> None:
        until = time.monotonic() + BUSY_SECONDS
        while True:  # SQLite waits for nobody when it changes the mode of a new file
            try:
                self.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                if not busy or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_SECONDS)


def engine_options(connections: int) -> dict[str, Any]:
    """Return what to make an engine with that has so many connections, each ready for use."""
    return {
        "pool_size": connections,
        "max_overflow": 0,
        "pool_timeout": BUSY_SECONDS,
        "connect_args": {"timeout": BUSY_SECONDS, "factory": DurableConnection},
    }


def begin_by(engine: Engine, statement: str) -> None:
    """Let all transactions of the engine begin by this statement."""

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
