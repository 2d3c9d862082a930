import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kgym.transport.bus import Bus, InProcessBus
from kgym.transport.rabbitmq import RabbitBus
from kgym_cli.platforms.servers import RabbitMQ
from tests.conftest import BUCKETS
from tests.servers import require
from tests.transport.places import Folder, Place

if BUCKETS:
    from tests.google.cloud_storage.server import CloudStorage
    from tests.transport.buckets import Bucket

_numbers = itertools.count()


@pytest.fixture
async def rabbit(rabbitmq: RabbitMQ) -> AsyncIterator[RabbitBus]:
    """A bus on queues of the test's own."""
    async with RabbitBus(rabbitmq.url, f"test{next(_numbers)}") as bus:
        yield bus


@pytest.fixture(params=["in_process", "rabbitmq"])
async def bus(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Bus]:
    if request.param == "in_process":
        yield InProcessBus()
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    async with RabbitBus(server.url, f"test{next(_numbers)}") as bus:
        yield bus


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """A broker to be killed; a test that kills it starts it again."""
    require(RabbitMQ)
    with RabbitMQ(tmp_path_factory.mktemp("mortal") / "rabbitmq") as server:
        yield server


@pytest.fixture(scope="session")
def shared_cloud(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[CloudStorage]":
    """A cloud storage in which each test has a bucket of its own, and nothing goes wrong."""
    with CloudStorage(tmp_path_factory.mktemp("cloud")) as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A storage of each kind."""
    if request.param == "folder":
        yield Folder(tmp_path / "storage")
        return
    if not BUCKETS:
        pytest.skip("kgymsuite[gcp] is not installed")
    server: CloudStorage = request.getfixturevalue("shared_cloud")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    bucket = Bucket(server, tmp_path)
    yield bucket
    bucket.close()
