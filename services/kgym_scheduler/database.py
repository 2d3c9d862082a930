"""The connection to the database: engines, transactions, migrations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from kgym.errors import InfrastructureError, UserError

BUSY_SECONDS = 30.0
"""How long a transaction waits for its turn: for another process, or for a connection."""
READERS = 4


class Database:
    """Reading and writing transactions on one database.

    SQLite lets one transaction write at a time. So the writers of this
    process queue for one connection, in order and without polling; writers of
    other processes are waited for by SQLite. Readers never wait (WAL).
    """

    def __init__(self, url: str) -> None:
        if make_url(url).drivername != "sqlite+aiosqlite":
            raise UserError(
                "unsupported_database",
                f"cannot use {make_url(url)!r}: the URL has to begin with sqlite+aiosqlite:///",
            )
        self._writer = _engine(url, 1, "BEGIN IMMEDIATE")
        self._reader = _engine(url, READERS, "BEGIN")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that writes; it is committed at the end, or undone by an error."""
        with _database_errors():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees one state of the database and changes nothing."""
        with _database_errors():
            async with self._reader.begin() as connection:
                yield connection

    async def upgrade(self) -> None:
        """Bring the tables to the newest form. Others that try the same meanwhile wait."""
        async with self.write() as connection:
            await connection.run_sync(_upgrade)

    async def close(self) -> None:
        """Close all connections."""
        await self._writer.dispose()
        await self._reader.dispose()


async def upgrade(url: str) -> None:
    """Create the tables, or bring them to the newest form; safe to run twice, or side by side."""
    database = Database(url)
    try:
        await database.upgrade()
    finally:
        await database.close()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "kgym_scheduler:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _engine(url: str, connections: int, begin: str) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={"timeout": BUSY_SECONDS},
    )

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", _prepare)
    event.listen(engine.sync_engine, "begin", start)
    return engine


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Set up one connection to SQLite."""
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class _database_errors:  # noqa: N801 - a context manager, used like a function
    """Turn the library's errors into the platform's, which workers answer by trying again."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError):
            # without the statement, which may hold what users submitted
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise InfrastructureError("database_failed", f"the database failed: {cause}") from error
