"""The agent's database, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import RunRequest
from kgym.errors import InfrastructureError
from kgym_crashfixer.store.database import Database
from kgym_crashfixer.store.run_store import Answered, Batch, RunStore, Sent
from kgym_crashfixer.store.tables import metadata

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A database with the tables."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'agent.db'}"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("database_url"))
    database = Database(url)
    await asyncio.gather(*(database.upgrade() for _ in range(2)))
    yield database
    await database.close()


async def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:

    def differences(connection: Connection) -> object:
        how = {"version_table": "agent_version", "compare_type": True}
        return compare_metadata(MigrationContext.configure(connection, opts=how), metadata)

    assert await database.read(differences) == []


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    store = RunStore(database)
    request = RunRequest(bug="one", model="made:up")
    run, _ = await store.create(request, "key", "forest", "local")
    await store.take(run, "me", None, request)
    sent = Sent("a", "t0", "patch", "{}")
    with pytest.raises(InfrastructureError, match="the database failed"):
        await store.write(run, "me", Batch(events=[("asked", {})], sent=[sent, sent]))
    assert await store.events(run) == []
    assert await store.calls(run, None) == []


async def test_answers_and_failures_are_stored_side_by_side(database: Database) -> None:
    store = RunStore(database)
    request = RunRequest(bug="one", model="made:up")
    run, _ = await store.create(request, "key", "forest", "local")
    await store.take(run, "me", None, request)
    names = ["a", "b", "c", "d"]
    await store.write(run, "me", Batch(sent=[Sent(one, "t0", "patch", "{}") for one in names]))
    reply = Reply(text="yes", model="made:up", price=0.5)
    answers = [Answered("a", reply), Answered("b", error="gone"), Answered("c", reply)]
    await store.write(run, "me", Batch(answered=answers))
    await store.write(
        run, "me", Batch(sent=[Sent(one, "t0", "patch", "{}", again=True) for one in ("b", "d")])
    )
    found = {row.name: row for row in await store.sent(run)}
    assert [found[one].reply is not None for one in names] == [True, False, True, False]
    assert [found[one].lost for one in names] == [0, 0, 0, 1]
    spent = await store.spent(run)
    assert (spent.calls, spent.dollars, spent.lost_calls) == (2, 1.0, 1)
