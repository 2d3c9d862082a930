"""Private PostgreSQL and RabbitMQ servers for tests (see kgym_cli/platforms/servers.py).

One server of each kind lasts for the session, started when the first test asks:

    def test_something(database_url: str): …       # an empty PostgreSQL database, this test's own
    def test_something(postgresql: PostgreSQL): …  # the shared server: .create(), .query()
    def test_something(rabbitmq: RabbitMQ): …      # the shared broker; give queues a prefix

A test that kills or stops a server starts its own: `with RabbitMQ(tmp_path / "rabbitmq")`.
"""

import itertools
from collections.abc import Iterator

import pytest

from kgym.errors import InfrastructureError
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ, Server

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what needs one of these servers out of the fast tests."""
    for item in items:
        named = {*getattr(item, "fixturenames", ()), *item.name.rpartition("[")[2][:-1].split("-")}
        if named & {"postgresql", "rabbitmq"}:
            item.add_marker("slow")


def require(*kinds: type[Server]) -> None:
    """Skip the test where one of these servers is not installed."""
    for kind in kinds:
        try:
            kind.check()
        except InfrastructureError as error:
            pytest.skip(f"{kind.__name__}: {error}")


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """A PostgreSQL server, shared by the session's tests, none of which kills it."""
    require(PostgreSQL)
    folder = tmp_path_factory.mktemp("servers") / "postgresql"
    with PostgreSQL(folder, durable=False) as server:
        yield server


@pytest.fixture
def database_url(postgresql: PostgreSQL) -> str:
    """An empty PostgreSQL database of the test's own, as a SQLAlchemy URL (asyncpg)."""
    return postgresql.create(f"test{next(_numbers)}")


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """A RabbitMQ server, shared by the session's tests."""
    require(RabbitMQ)
    with RabbitMQ(tmp_path_factory.mktemp("servers") / "rabbitmq") as server:
        yield server
