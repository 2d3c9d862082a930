"""The command line, as tests of commands have it, and a model's provider."""

import threading
from collections.abc import Iterator

import pytest

from tests.benchmark.model_provider import Provider
from tests.cli.conftest import data, idle, kgym
from tests.transport.conftest import place, shared_cloud

__all__ = ["data", "idle", "kgym", "place", "provider", "shared_cloud"]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
