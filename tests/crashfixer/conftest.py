"""Fixtures for tests with a real scheduler, whose workers a `Farm` plays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym_cli.platforms.embedded_platform import Platform as Scheduler
from tests.crashfixer.farm import Farm, farming


@pytest.fixture
def farm() -> Farm:
    return Farm()


@pytest.fixture
def scheduler(tmp_path: Path, farm: Farm) -> Iterator[Scheduler]:
    with farming(tmp_path, farm) as running:
        yield running
