"""The connection to the agent's database, SQLite or PostgreSQL, and its migrations."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

from kgym import sqlite
from kgym.errors import InfrastructureError, UserError

T = TypeVar("T")
Work = Callable[[Connection], T]
"""What is done in one transaction."""
READERS = 4
MIGRATION_LOCK = 0x6B676178
_DRIVERS = ("sqlite+aiosqlite", "postgresql+asyncpg")


class Database:
    """Reading and writing transactions. SQLite lets one write at a time, and readers never wait."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        if parsed.drivername not in _DRIVERS:
            raise UserError(
                "unsupported_database",
                f"cannot use {parsed!r}: the URL has to begin with "
                "sqlite+aiosqlite:/// or postgresql+asyncpg://",
            )
        self._writer: _Connections
        self._reader: _Connections
        if parsed.get_backend_name() == "sqlite":
            self._writer = _Sqlite(parsed, 1, "BEGIN IMMEDIATE")
            self._reader = _Sqlite(parsed, READERS, "BEGIN")
        else:
            self._writer = self._reader = _Postgresql(parsed, 1 + READERS)

    async def write(self, work: Work[T]) -> T:
        """Do work that writes, in a transaction: committed at the end, or undone by an error."""
        with _errors():
            return await self._writer.run(work)

    async def read(self, work: Work[T]) -> T:
        """Do work that changes nothing, in a transaction."""
        with _errors():
            return await self._reader.run(work)

    async def upgrade(self) -> None:
        """Bring the tables to the newest form; safe to run twice, or side by side."""
        await self.write(_upgrade)

    async def close(self) -> None:
        """Close all connections."""
        await self._writer.close()
        await self._reader.close()


class _Connections(Protocol):
    async def run(self, work: Work[T]) -> T:
        """Do work in a transaction."""
        ...

    async def close(self) -> None:
        """Close them."""
        ...


class _Sqlite:
    """Connections to SQLite, each used by a thread of its own.

    A transaction is one change of threads there and back; with an asynchronous driver it would be
    several for each statement, and they, not SQLite, took most of the time.
    """

    def __init__(self, url: URL, connections: int, begin: str) -> None:
        self._engine = _sqlite(url, connections, begin)
        self._threads = ThreadPoolExecutor(connections, "agent-database")

    async def run(self, work: Work[T]) -> T:
        """Do work in a transaction. It goes on to its end if this task is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: Work[T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)

    async def close(self) -> None:
        """Close them."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()


class _Postgresql:
    """Connections to PostgreSQL."""

    def __init__(self, url: URL, connections: int) -> None:
        self._engine = create_async_engine(
            url,
            pool_pre_ping=True,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=sqlite.BUSY_SECONDS,
        )

    async def run(self, work: Work[T]) -> T:
        """Do work in a transaction."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close them."""
        await self._engine.dispose()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
    config = Config()
    config.set_main_option("script_location", "kgym_crashfixer.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _sqlite(url: URL, connections: int, begin: str) -> Engine:
    options = sqlite.engine_options(connections)
    options["connect_args"] |= {"check_same_thread": False}
    engine = create_engine(url.set(drivername="sqlite"), poolclass=QueuePool, **options)
    sqlite.begin_by(engine, begin)
    return engine


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn the libraries' errors into InfrastructureError `database_failed`."""
    try:
        yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        said = error.orig if isinstance(error, DBAPIError) and error.orig else error
        raise InfrastructureError("database_failed", f"the database failed: {said}") from error
