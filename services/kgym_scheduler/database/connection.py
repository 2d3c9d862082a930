"""The connection to the database, SQLite or PostgreSQL: engines, transactions, migrations, news."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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

CONNECT_SECONDS = 5.0
READERS = 4
# Connections to PostgreSQL for transactions that write.
WRITERS = 6
MIGRATION_LOCK = 0x6B67796E


class Database:
    """Reading and writing transactions on one database.

    SQLite lets one transaction write at a time. So the writers of this
    process queue for one connection, in order and without polling; writers of
    other processes are waited for by SQLite. Readers never wait (WAL). On
    PostgreSQL they lock the jobs that they change (`job_changes.Changes`).
    """

    def __init__(self, url: str) -> None:
        self._url = url
        driver = _driver(url)
        if driver == "sqlite+aiosqlite":
            self._writer = _sqlite(url, 1, "BEGIN IMMEDIATE")
            self._reader = _sqlite(url, READERS, "BEGIN")
        elif driver == "postgresql+asyncpg":
            # Few statements, always the same: to plan each anew takes longer than to execute it.
            planned = {"plan_cache_mode": "force_generic_plan"}
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
        with _database_errors():
            async with (
                self._writer.connect() as connection,
                _unchecked(connection),
                connection.begin(),
            ):
                if connection.dialect.name == "postgresql":
                    lock = text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
                    await connection.execute(lock)
                await connection.run_sync(_upgrade)

    async def room(self) -> tuple[int, int] | None:
        """Return the bytes free on its disk, and those there are; None of a server's."""
        url = make_url(self._url)
        if url.get_backend_name() != "sqlite" or not url.database:
            return None
        usage = await asyncio.to_thread(shutil.disk_usage, Path(url.database).parent)
        return usage.free, usage.total

    @property
    def is_sqlite(self) -> bool:
        """Whether it is SQLite, which has one writer at a time; else it is PostgreSQL."""
        return _driver(self._url) == "sqlite+aiosqlite"

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


@asynccontextmanager
async def _unchecked(connection: AsyncConnection) -> AsyncIterator[None]:
    """Let tables be replaced: SQLite changes most of a column only so, and others point to them."""
    raw = (await connection.get_raw_connection()).driver_connection
    sqlite = connection.dialect.name == "sqlite"
    if sqlite and raw is not None:
        await raw.execute("PRAGMA foreign_keys = OFF")  # passed over within a transaction
    try:
        yield
    finally:
        if sqlite and raw is not None:
            await raw.execute("PRAGMA foreign_keys = ON")


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "kgym_scheduler.database:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in known:
            raise UserError(
                "unknown_database_revision",
                f"the database has revision {revision}, which this version of kGymSuite cannot"
                " upgrade: an unreleased version before 0.2.0 made it, or a newer one. Name a new"
                " database (on one machine: another data folder), or run the version that made it.",
            )
    command.upgrade(config, "head")


def _driver(url: str) -> str:
    return make_url(url).drivername


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
        pool_use_lifo=True,  # one that has been busy knows the statements
        isolation_level=isolation,
        connect_args={
            "timeout": CONNECT_SECONDS,
            "command_timeout": sqlite.BUSY_SECONDS,
            "server_settings": {
                "application_name": "kgym",
                "jit": "off",
                # Every statement has its index; plans made while the tables were small are kept.
                "enable_seqscan": "off",
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
    """Let the pool replace a connection that the server has closed, as when it was away."""
    if record.driver_connection is None or record.driver_connection.is_closed():
        raise DisconnectionError


class _database_errors:  # noqa: N801 - a context manager, used like a function
    """Turn the libraries' errors into the platform's.

    Data that the database cannot hold are the caller's fault: UserError `bad_data`, and Conflict
    `data_conflict` where they contradict what it holds. The rest is InfrastructureError
    `database_failed`, which workers and clients answer by trying again.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError | asyncpg.PostgresError | asyncpg.InterfaceError):
            # without the statement, which may hold what users submitted
            said = error.orig if isinstance(error, DBAPIError) and error.orig else error
            cause = str((said.__cause__ or said).args[0])
            match _fault(error):
                case "data":
                    raise UserError(
                        "bad_data", f"the database cannot hold this: {cause}"
                    ) from error
                case "conflict":
                    message = f"this contradicts what the database holds: {cause}"
                    raise Conflict("data_conflict", message) from error
            raise InfrastructureError("database_failed", f"the database failed: {cause}") from error
        if isinstance(error, OverflowError | UnicodeEncodeError):  # SQLite's driver lets them pass
            raise UserError("bad_data", f"the database cannot hold this: {error}") from error
        if isinstance(error, OSError | TimeoutError):
            message = f"the database does not answer: {error!r}"
            raise InfrastructureError("database_failed", message) from error


def _fault(error: Exception) -> Literal["data", "conflict"] | None:
    """Return whether it is by the data that were given that a statement failed.

    SQLAlchemy knows the errors of SQLite and PostgreSQL's of class 23, integrity. Those of class
    22, data, are nothing special to it, nor is what asyncpg cannot even send.
    """
    sent = error.orig.__cause__ if isinstance(error, DBAPIError) and error.orig else error
    state = getattr(sent, "sqlstate", None) or ""
    if isinstance(error, IntegrityError) or state.startswith("23"):
        return "conflict"
    data = isinstance(error, DataError) or isinstance(sent, ValueError) or state.startswith("22")
    return "data" if data else None
