"""Jobs from before bugs and entries were counted are counted after an upgrade."""

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from kgym.api.bugs import BugFilter
from kgym.api.jobs import JobFilter
from kgym.api.steps import Verdict
from kgym_scheduler.database.connection import Database
from kgym_scheduler.job_store import JobStore
from tests.results import built
from tests.scheduler.parts import BUILD

pytestmark = pytest.mark.anyio

ENTRY = "ab" * 20
NOW = "'2026-01-01 00:00:00.000000'"


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    return str(request.getfixturevalue("database_url"))


def _before(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "kgym_scheduler.database:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "0010")


async def _add(database: Database) -> None:
    """Add two jobs on a bug, of which one has built on an entry, as they were kept before."""
    rows = [
        "INSERT INTO lanes (id, kind, needs) VALUES (1, 'build', '{}')",
        "INSERT INTO jobs (id, state, priority, created_at, updated_at, tags, verdict, title)"
        f" VALUES (1, 'succeeded', 0, {NOW}, {NOW}, :tags, 'same_crash', 'WARNING in f'),"
        f" (2, 'failed', 0, {NOW}, {NOW}, :tags, NULL, NULL)",
        "INSERT INTO facets (job_id, facet, state, created_at)"
        f" VALUES (1, 'tag:bug=old', 'succeeded', {NOW}), (2, 'tag:bug=old', 'failed', {NOW})",
        "INSERT INTO steps (id, job_id, number, kind, lane, rank, turn, state, attempt, tries,"
        " artifacts, result, spec)"
        " VALUES (1, 1, 0, 'build', 1, 0, 0, 'succeeded', 2, 2, '[]', :result, :spec),"
        " (2, 2, 0, 'build', 1, 0, 0, 'failed', 1, 1, '[]', NULL, :spec)",
        "INSERT INTO attempts (lease, step_id, number, worker, started_at)"
        f" VALUES ('abcdef00abcdef00abcdef00abcdef00', 1, 1, 'gone', {NOW}),"
        f" ('abcdef00abcdef00abcdef00abcdef01', 1, 2, 'gone', {NOW}),"
        f" ('abcdef00abcdef00abcdef00abcdef02', 2, 1, 'gone', {NOW})",
        "INSERT INTO events (job_id, step, attempt, kind, at, data)"
        f" VALUES (1, 0, 1, 'state', {NOW}, '{{}}'), (2, 0, 1, 'state', {NOW}, '{{}}')",
    ]
    given = {
        "tags": '["bug=old"]',
        "result": built(tree=ENTRY).model_dump_json(),
        "spec": BUILD.model_dump_json(),
    }
    async with database.write() as connection:
        await connection.run_sync(_before)
        for row in rows:
            used = {name: value for name, value in given.items() if f":{name}" in row}
            await connection.execute(text(row), used)


async def test_jobs_from_before_are_counted(old_url: str) -> None:
    database = Database(old_url)
    await _add(database)
    await database.upgrade()
    await database.close()
    store = JobStore(old_url)
    for _ in range(10):
        await store.subjects.catch_up()
    [bug] = (await store.bugs(BugFilter())).bugs
    assert (bug.name, bug.states) == ("old", {"succeeded": 1, "failed": 1})
    assert (bug.verdict, bug.crash_class) == (Verdict.SAME_CRASH, "WARNING")
    assert [one.id for one in (await store.page(JobFilter(entry=ENTRY))).jobs] == [1]
    await store.close()
