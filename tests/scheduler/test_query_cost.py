"""What lists and queues cost does not grow with the jobs there are: SQLite counts its own steps."""

import asyncio
import itertools
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import create_async_engine

from kgym.api.jobs import JobFilter
from kgym_scheduler.database import job_lists, queries
from kgym_scheduler.database.connection import upgrade
from kgym_scheduler.database.job_lists import JobList
from kgym_scheduler.queue import place_in_queue
from tests.monitor import many_jobs

pytestmark = pytest.mark.anyio

FEW, MANY = 1000, 8000
# Instructions of SQLite's machine that are counted as one.
GRAIN = 10
CONDITIONS: dict[str, Any] = {
    "state": "failed",
    "outcome": "not_resolved",
    "kind": "reproduce",
    "bug": "extid-0001",
    "tag": "model:a",
    "group": "sweep-0",
    "submitter": "alice",
    "mine": True,
    "text": "nowhere",
    "created_before": datetime(2030, 1, 1, tzinfo=UTC),
}


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One with few jobs, and one with eight times as many."""
    paths = []
    for jobs in (FEW, MANY):
        path = tmp_path_factory.mktemp("data") / "kgym.db"
        url = f"sqlite+aiosqlite:///{path}"
        asyncio.run(upgrade(url))
        many_jobs.fill(url, jobs)
        paths.append(path)
    return paths


def sql(query: Executable) -> str:
    """The statement as SQLite gets it, values and all."""
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    return str(compiled)


def cost(path: Path, query: Executable) -> int:
    """How much SQLite has to do for all rows of the query."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = sqlite3.connect(path)
    connection.set_progress_handler(count, GRAIN)
    connection.execute(sql(query)).fetchall()
    connection.close()
    return steps


@pytest.mark.thorough
def test_every_list_costs_the_same_among_more_jobs(
    databases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("SCANNED", "COUNTED", "READ"):
        monkeypatch.setattr(job_lists, bound, 50)
    grown = {}
    for names in [*itertools.combinations(CONDITIONS, 1), *itertools.combinations(CONDITIONS, 2)]:
        wanted = JobFilter(limit=10, **{name: CONDITIONS[name] for name in names})
        of = JobList(wanted, "alice")
        for what, query in {
            "page": of.page(queries.JOB_COLUMNS, 11, None),
            "end": of.last_seen(None),
            "count": of.count(),
        }.items():
            few, many = (cost(path, query) for path in databases)
            if many > 2 * few + 500:
                grown[what, names] = few, many
    assert grown == {}


@pytest.mark.thorough
def test_a_list_that_no_index_serves_would_cost_more(databases: list[Path]) -> None:
    everything = queries.steps_of(range(1, FEW + 1))
    assert cost(databases[1], everything) > 1000  # the counter counts


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"state": "failed"}, {"bug": "extid-0001"}], ids=str)
async def test_postgresql_tests_no_job_beyond_the_window(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(job_lists, "SCANNED", FEW)
    await asyncio.to_thread(many_jobs.fill, postgresql_url, MANY)
    query = JobList(JobFilter(text="nowhere", **more), "alice").page(queries.JOB_COLUMNS, 11, None)
    engine = create_async_engine(postgresql_url)
    text = query.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
    async with engine.connect() as connection:
        plan = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}")
        tested = dropped(plan.scalar_one()[0]["Plan"])
    await engine.dispose()
    # Each of the window's jobs is dropped by the test, and then from the window.
    assert 0 < tested <= 2 * FEW


def dropped(plan: dict[str, Any]) -> float:
    """How many rows PostgreSQL has read in vain."""
    own: float = plan.get("Rows Removed by Filter", 0) * plan["Actual Loops"]
    return own + sum(map(dropped, plan.get("Plans", [])))


@pytest.mark.parametrize(
    "query", [queries.waiting(), place_in_queue.before("build", (0, 900, 900))], ids=["all", "one"]
)
def test_queues_are_counted_without_reading_a_step(
    databases: list[Path], query: Executable
) -> None:
    with sqlite3.connect(databases[1]) as connection:
        [[table]] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'steps'"
        )
        rows = connection.execute(f"EXPLAIN {sql(query)}").fetchall()
        opened = {row[2]: row[3] for row in rows if row[1] == "OpenRead"}
        read = {row[2] for row in rows if row[1] in {"Column", "SeekRowid", "FinishSeek"}}
        assert table not in {opened.get(cursor) for cursor in read}
        assert connection.execute(sql(query)).fetchall()
    connection.close()
