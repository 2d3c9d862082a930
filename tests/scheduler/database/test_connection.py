"""Migrations and transactions, on SQLite and on PostgreSQL."""

import asyncio
import sqlite3
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_mock_engine, inspect, text

from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_scheduler.database.connection import Database, upgrade
from kgym_scheduler.database.tables import metadata
from tests.refused import refused

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    return str(request.getfixturevalue("database_url"))


async def test_schedulers_that_start_together_make_the_tables_once(empty_url: str) -> None:
    await asyncio.gather(*(upgrade(empty_url) for _ in range(3)))
    await upgrade(empty_url)
    database = Database(empty_url)
    async with database.read() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).has_table("attempts"))
    await database.close()


def test_a_change_of_the_tables_needs_a_migration() -> None:
    made: list[str] = []
    engine = create_mock_engine(
        "sqlite://", lambda ddl, *_: made.append(str(ddl.compile(dialect=engine.dialect)))
    )
    metadata.create_all(engine, checkfirst=False)
    # New databases begin with these tables. If this fails, add a migration for older ones, and
    # what it changes to `version_0_2_0.sql`.
    words = " ".join("".join(sorted(made)).split())
    assert sha256(words.encode()).hexdigest()[:16] == "b95b6e6a3cd682b0"


# Of the jobs in `version_0_2_0.sql`, in their order.
OUTCOMES = [
    *(None, "resolved", "not_resolved", "inconclusive", "reproduced", "not_reproduced"),
    *("compiles", "does_not_compile", "built", "aborted"),
    *("does_not_compile", "refused", "does_not_apply", "inconclusive", "inconclusive"),
]


async def test_a_database_of_0_2_0_gets_the_tables_and_outcomes_of_today(empty_url: str) -> None:
    database = Database(empty_url)
    script = Path(__file__).with_name("version_0_2_0.sql").read_text()
    async with database.write() as connection:
        for statement in script.split(";\n")[:-1]:
            await connection.exec_driver_sql(statement)
    await upgrade(empty_url)
    await upgrade(empty_url)
    async with database.read() as connection:
        outcomes = await connection.execute(text("SELECT outcome FROM jobs ORDER BY id"))
        assert list(outcomes.scalars()) == OUTCOMES
        copies = await connection.execute(text("SELECT outcome FROM facets ORDER BY job_id"))
        assert list(copies.scalars()) == [None, "resolved"]
        for name in ("jobs", "facets"):
            table = metadata.tables[name]
            columns = await connection.run_sync(_columns, name)
            assert columns == {column.name for column in table.columns}
            assert await connection.run_sync(_indexes, name) == {
                index.name: [column.name for column in index.columns] for index in table.indexes
            }
    await database.close()


def _columns(connection: Connection, table: str) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table)}


def _indexes(connection: Connection, table: str) -> dict[str | None, list[str | None]]:
    return {
        index["name"]: index["column_names"]
        for index in inspect(connection).get_indexes(table)
        if not index["unique"]
    }


@pytest.mark.parametrize("revision", ["0012", "0001", "9.9"])
async def test_a_database_of_another_version_is_refused_untouched(
    empty_url: str, revision: str
) -> None:
    database = Database(empty_url)
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        await connection.execute(text(f"INSERT INTO alembic_version VALUES ('{revision}')"))
    with refused("unknown_database_revision", f"revision {revision}.*new database", UserError):
        await upgrade(empty_url)
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == revision
    with pytest.raises(InfrastructureError):  # no table has been made
        async with database.read() as connection:
            await connection.execute(text("SELECT 1 FROM jobs"))
    await database.close()


async def test_sqlite_is_durable_and_checks_foreign_keys(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    for transaction in (database.read, database.write):
        async with transaction() as connection:
            settings = [
                await connection.scalar(text(f"PRAGMA {name}"))
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
        assert settings == ["wal", 2, 1, 30000]
    await database.close()


@pytest.mark.thorough
async def test_the_loop_goes_on_while_another_process_keeps_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    database = Database(f"sqlite+aiosqlite:///{path}")

    async def mode() -> object:
        async with database.read() as connection:
            return await connection.scalar(text("PRAGMA journal_mode"))

    waiting = asyncio.create_task(mode())
    for _ in range(50):  # a loop that stands still would come back when the wait has failed
        await asyncio.sleep(0.01)
    assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    assert await waiting == "wal"
    await database.close()


async def test_a_file_that_is_no_database_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_bytes(b"x" * 10_000)
    database = Database(f"sqlite+aiosqlite:///{path}")
    threads = threading.active_count()
    with pytest.raises(InfrastructureError, match="file is not a database"):
        async with database.read():
            pass
    while threading.active_count() > threads:  # the driver's wants the loop once more, to end
        await asyncio.sleep(0.01)
    await database.close()


async def test_an_error_undoes_the_whole_transaction(url: str) -> None:
    database = Database(url)
    row = "INSERT INTO jobs (state, priority, created_at, updated_at, tags) VALUES "
    now = "'2026-01-01 00:00:00'"

    async def add_two() -> None:
        async with database.write() as connection:
            await connection.execute(text(f"{row} ('queued', 0, {now}, {now}, '[]')"))
            await connection.execute(text(f"{row} (NULL, 0, {now}, {now}, '[]')"))

    with pytest.raises(Conflict, match="contradicts what the database holds"):
        await add_two()
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM jobs")) == 0
    await database.close()


async def test_a_database_that_is_away_is_an_infrastructure_error() -> None:
    database = Database("postgresql+asyncpg://kgym:x@127.0.0.1:1/kgym")
    with pytest.raises(InfrastructureError, match="does not answer"):
        async with database.read():
            pass
    await database.close()


def test_a_database_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="sqlite"):
        Database("mysql://host/name")
