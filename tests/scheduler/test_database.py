"""Migrations and the settings of SQLite."""

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from kgym.errors import InfrastructureError, UserError
from kgym_scheduler.database import Database, upgrade
from kgym_scheduler.tables import metadata

pytestmark = pytest.mark.anyio


async def test_the_migrations_make_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    await asyncio.gather(upgrade(url), upgrade(url))
    await upgrade(url)
    database = Database(url)

    def differences(connection: Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with database.read() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_sqlite_is_durable_and_checks_foreign_keys(url: str) -> None:
    database = Database(url)
    for transaction in (database.read, database.write):
        async with transaction() as connection:
            settings = [
                await connection.scalar(text(f"PRAGMA {name}"))
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
        assert settings == ["wal", 2, 1, 30000]
    await database.close()


async def test_an_error_undoes_the_whole_transaction(url: str) -> None:
    database = Database(url)
    row = "INSERT INTO jobs (state, priority, created_at, updated_at, tags) VALUES "

    async def add_two() -> None:
        async with database.write() as connection:
            await connection.execute(text(f"{row} ('queued', 0, '', '', '[]')"))
            await connection.execute(text(f"{row} (NULL, 0, '', '', '[]')"))

    with pytest.raises(InfrastructureError, match="the database failed"):
        await add_two()
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM jobs")) == 0
    await database.close()


def test_a_database_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="sqlite"):
        Database("mysql://host/name")
