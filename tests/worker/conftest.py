from pathlib import Path

import pytest

from kgym_scheduler.database.connection import upgrade
from tests.scheduler.parts import Clock, Platform


@pytest.fixture
async def platform(tmp_path: Path) -> Platform:
    url = f"sqlite+aiosqlite:///{tmp_path / 'kgym.db'}"
    await upgrade(url)
    return Platform(url, tmp_path, Clock())
