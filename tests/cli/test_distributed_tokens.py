"""The tokens of the workers that `kgym up --distributed` starts."""

import time
from pathlib import Path

import pytest

from kgym.api.steps import StepKind
from kgym.client import Client
from kgym_cli.platforms.distributed_platform import Distributed
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ
from kgym_cli.platforms.step_registry import WorkerShape
from tests.cli.conftest import Kgym
from tests.servers import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_SECONDS = 60.0


def until_all_work(platform: Distributed, client: Client) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not {worker.pid for worker in platform.workers} <= heard_of(client):
        assert time.monotonic() < limit
        platform.tend()
        time.sleep(0.2)


def heard_of(client: Client) -> set[int | None]:
    """The processes of the workers that the scheduler knows."""
    return {int(worker.id.split(":")[1]) for worker in client.workers()}


@pytest.mark.exhaustive
def test_the_workers_get_a_token_once_the_first_one_was_made(
    kgym: Kgym, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(PostgreSQL, RabbitMQ)
    few = [WorkerShape((StepKind.BUILD,)), WorkerShape((StepKind.CHECK,))]
    with Distributed(data, workers=few) as platform:
        died = [worker.pid for worker in platform.workers]
        token = kgym("token", "create", "me", "--scope", "admin").out.strip()
        with Client(platform.url, token) as client:
            while set(died) & {worker.pid for worker in platform.workers}:
                time.sleep(0.2)
            until_all_work(platform, client)
    monkeypatch.setenv("KGYM_TOKEN", token)  # it is none of a worker's
    with Distributed(data, workers=few) as platform, Client(platform.url, token) as client:
        until_all_work(platform, client)
