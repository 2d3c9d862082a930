import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgym_scheduler.core import Scheduler
from kgym_scheduler.database import upgrade
from kgym_scheduler.store import Store
from tests.scheduler.parts import Clock, Platform


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the tables in it, to be copied."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    asyncio.run(upgrade(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture
def url(empty_database: Path, tmp_path: Path) -> str:
    path = shutil.copyfile(empty_database, tmp_path / "kgym.db")
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def platform(url: str, tmp_path: Path, clock: Clock) -> Platform:
    return Platform(url, tmp_path, clock)


@pytest.fixture
async def store(platform: Platform) -> AsyncIterator[Store]:
    store = platform.store()
    yield store
    await store.close()


@pytest.fixture
async def scheduler(platform: Platform) -> AsyncIterator[Scheduler]:
    async with platform.scheduler() as scheduler:
        yield scheduler
