import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from kgym.transport.bus import Bus, InProcessBus
from kgym.transport.rabbitmq import RabbitBus
from kgym_dev.servers import RabbitMQ
from tests.servers import require

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
