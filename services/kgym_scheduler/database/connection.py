"""The database, SQLite or PostgreSQL: engines, transactions, migrations."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import asyncpg  # type: ignore[import-untyped]
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, PoolProxiedConnection, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from kgym import sqlite
from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_scheduler.database.tables import create

CONNECT_SECONDS = 5.0
# Connections for reading. Slow counts take turns (`KeptCounts`), so that they leave some free.
READERS = 4
# Connections to PostgreSQL for writing.
WRITERS = 6
# Any number that no other user of the database server takes as an advisory lock.
MIGRATION_LOCK = 0x6B67796E


class Database:
    """Reading and writing transactions on one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        driver = make_url(url).drivername
        self.is_sqlite = driver == "sqlite+aiosqlite"
        # The clock of a database that has none but its host's.
        self.host_clock: Callable[[], datetime] | None = None
        if self.is_sqlite:
            self.host_clock = lambda: datetime.now(UTC)
            # SQLite lets one transaction write at a time. So the writers of this process queue
            # for one connection: in order, and without polling for SQLite's lock, which is
            # neither fair nor quick. Only writers of other processes have to poll. Readers never
            # wait (WAL). On PostgreSQL, writers lock the jobs they change (`job_changes`).
            self._writer = _sqlite(url, 1, "BEGIN IMMEDIATE")
            self._reader = _sqlite(url, READERS, "BEGIN")
        elif driver == "postgresql+asyncpg":
            # The same few statements all the time: planning one takes longer than executing it.
            planned = {"plan_cache_mode": "force_generic_plan"}
            # Writers lock what they change, and have to see what others committed before: READ
            # COMMITTED. Readers run several statements on one state: REPEATABLE READ.
            self._writer = _postgresql(url, WRITERS, "READ COMMITTED", planned)
            self._reader = _postgresql(url, READERS, "REPEATABLE READ", {})
        else:
            raise UserError(
                "unsupported_database",
                f"cannot use {make_url(url)!r}: the URL has to begin with "
                "sqlite+aiosqlite:/// or postgresql+asyncpg://",
            )

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a writing transaction; it is committed at the end, or rolled back on an error."""
        with _database_errors():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a reading transaction, which sees one state of the database."""
        with _database_errors():
            async with self._reader.begin() as connection:
                yield connection

    async def upgrade(self) -> None:
        """Migrate the tables to the newest version; concurrent calls wait for each other."""
        with _database_errors():
            async with self._writer.begin() as connection:
                if not self.is_sqlite:  # there, BEGIN IMMEDIATE is the lock
                    lock = text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
                    await connection.execute(lock)
                await connection.run_sync(_upgrade)

    async def room(self) -> tuple[int, int] | None:
        """Return the free and total bytes of the database's disk; None if a server has it."""
        path = make_url(self._url).database
        if not self.is_sqlite or not path:
            return None
        usage = await asyncio.to_thread(shutil.disk_usage, Path(path).parent)
        return usage.free, usage.total

    async def size(self) -> int:
        """Return the bytes that the database takes."""
        query = "SELECT pg_database_size(current_database())"
        if self.is_sqlite:
            query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        async with self.read() as connection:
            return int(await connection.scalar(text(query)))

    async def close(self) -> None:
        """Close all connections."""
        await self._writer.dispose()
        await self._reader.dispose()


@asynccontextmanager
async def upgraded(url: str) -> AsyncIterator[Database]:
    """Context manager: a database with all tables, created or migrated if necessary."""
    database = Database(url)
    try:
        await database.upgrade()
        yield database
    finally:
        await database.close()


async def upgrade(url: str) -> None:
    """Create or migrate the tables; may be called repeatedly, and concurrently."""
    async with upgraded(url):
        pass


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "kgym_scheduler.database:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    made = MigrationContext.configure(connection).get_current_heads()
    for revision in made:
        if revision not in known:
            raise UserError(
                "unknown_database_revision",
                f"the database has revision {revision}, which this version of kGymSuite cannot"
                " upgrade: an unreleased version before 0.2.0 made it, or a newer one. Name a new"
                " database (on one machine: another data folder), or run the version that made it.",
            )
    if made:
        command.upgrade(config, "head")
    else:  # a new database begins with the tables of today
        create(connection)
        command.stamp(config, "head")


def _sqlite(url: str, connections: int, begin: str) -> AsyncEngine:
    engine = create_async_engine(url, **sqlite.engine_options(connections))
    sqlite.begin_by(engine.sync_engine, begin)
    return engine


def _postgresql(
    url: str, connections: int, isolation: str, settings: Mapping[str, str]
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=sqlite.BUSY_SECONDS,
        pool_use_lifo=True,  # the last one used has the statements prepared
        isolation_level=isolation,
        connect_args={
            "timeout": CONNECT_SECONDS,
            "command_timeout": sqlite.BUSY_SECONDS,
            "server_settings": {
                "application_name": "kgym",
                "jit": "off",
                # Times as text are in UTC, as on SQLite (`counts.py` groups by them).
                "timezone": "UTC",
                # Every statement has an index. Without this, plans that were made while the
                # tables were small would scan them for ever.
                "enable_seqscan": "off",
                # A scheduler that hangs or is cut off must not keep its locks.
                "idle_in_transaction_session_timeout": f"{sqlite.BUSY_SECONDS:g}s",
                **settings,
            },
        },
    )
    event.listen(engine.sync_engine, "checkout", _check)
    return engine


def _check(
    connection: DBAPIConnection, record: ConnectionPoolEntry, _: PoolProxiedConnection
) -> None:
    """Let the pool replace a connection that the server has closed, e.g. when it restarted."""
    if record.driver_connection is None or record.driver_connection.is_closed():
        raise DisconnectionError


class _database_errors:  # noqa: N801 - a context manager, used like a function
    """Translates the libraries' errors into the platform's.

    UserError `bad_data`: the database cannot hold the data. Conflict `data_conflict`: they violate
    a constraint. InfrastructureError `database_failed`: all else; workers and clients retry.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError | asyncpg.PostgresError | asyncpg.InterfaceError):
            # Without the statement: it may contain what users submitted.
            original = error.orig if isinstance(error, DBAPIError) and error.orig else error
            cause = str((original.__cause__ or original).args[0])
            match _fault(error):
                case "data":
                    raise UserError(
                        "bad_data", f"the database cannot hold this: {cause}"
                    ) from error
                case "conflict":
                    message = f"this contradicts what the database holds: {cause}"
                    raise Conflict("data_conflict", message) from error
            raise InfrastructureError("database_failed", f"the database failed: {cause}") from error
        if isinstance(error, OverflowError | UnicodeEncodeError):  # by SQLite's driver
            raise UserError("bad_data", f"the database cannot hold this: {error}") from error
        if isinstance(error, OSError | TimeoutError):
            message = f"the database does not answer: {error!r}"
            raise InfrastructureError("database_failed", message) from error


def _fault(error: Exception) -> Literal["data", "conflict"] | None:
    """Return whether a statement failed because of its data."""
    # SQLAlchemy maps SQLite's errors, and PostgreSQL's SQLSTATE class 23 (integrity). It does not
    # map class 22 (data), nor the ValueErrors of asyncpg for values that it cannot encode.
    sent = error.orig.__cause__ if isinstance(error, DBAPIError) and error.orig else error
    state = getattr(sent, "sqlstate", None) or ""
    if isinstance(error, IntegrityError) or state.startswith("23"):
        return "conflict"
    data = isinstance(error, DataError) or isinstance(sent, ValueError) or state.startswith("22")
    return "data" if data else None
