import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from kgym_cli.platforms.servers import PostgreSQL, free_port
from kgym_scheduler.database import tokens as tokens_module
from kgym_scheduler.database.connection import upgrade
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import Clock, Platform, served

_numbers = itertools.count()
NewDatabase = Callable[[], str]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the tables in it, to be copied."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    asyncio.run(upgrade(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def empty_postgresql(postgresql: PostgreSQL) -> str:
    """The name of a PostgreSQL database with the tables in it, to be copied."""
    asyncio.run(upgrade(postgresql.create("empty")))
    return "empty"


@pytest.fixture
def new_sqlite(empty_database: Path, tmp_path: Path) -> NewDatabase:
    """Makes SQLite files with the tables in them."""

    def make() -> str:
        path = shutil.copyfile(empty_database, tmp_path / f"kgym{next(_numbers)}.db")
        return f"sqlite+aiosqlite:///{path}"

    return make


@pytest.fixture
def new_postgresql(postgresql: PostgreSQL, empty_postgresql: str) -> NewDatabase:
    """Makes PostgreSQL databases with the tables in them."""

    def make() -> str:
        name = f"copy{next(_numbers)}"
        postgresql.query(f"CREATE DATABASE {name} TEMPLATE {empty_postgresql}")
        return postgresql.url.rpartition("/")[0] + f"/{name}"

    return make


@pytest.fixture
def sqlite_url(new_sqlite: NewDatabase) -> str:
    return new_sqlite()


@pytest.fixture
def postgresql_url(new_postgresql: NewDatabase) -> str:
    return new_postgresql()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database with the tables in it, of either kind: the tests are the contract of both."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module's tests on one kind of database, if its DATABASE names one."""
    if "url" in metafunc.fixturenames and (kind := getattr(metafunc.module, "DATABASE", None)):
        # As a mark, it takes the place of the fixture's own kinds.
        metafunc.definition.add_marker(pytest.mark.parametrize("url", [kind], indirect=True))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def platform(url: str, tmp_path: Path, clock: Clock) -> Platform:
    return Platform(url, tmp_path, clock)


@pytest.fixture
async def store(platform: Platform) -> AsyncIterator[JobStore]:
    store = platform.store()
    yield store
    await store.close()


@pytest.fixture
async def scheduler(platform: Platform) -> AsyncIterator[Scheduler]:
    async with platform.scheduler() as scheduler:
        yield scheduler


@pytest.fixture
def tokens(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    """The tokens of the scheduler, which remembers none of them."""
    monkeypatch.setattr(tokens_module, "CACHE_SECONDS", 0.0)
    return Tokens(scheduler.store.database)


@pytest.fixture
async def http(scheduler: Scheduler) -> AsyncIterator[httpx.AsyncClient]:
    async with served(scheduler) as client:
        yield client


@pytest.fixture
def port() -> int:
    return free_port()
