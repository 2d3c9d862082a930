"""Two hosts: the worker has a network of its own, which is cut off and comes back."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import BuildSpec
from kgym.client import Client
from kgym_cli.platforms.distributed_platform import Distributed
from kgym_cli.platforms.servers import PostgreSQL, Program, RabbitMQ
from tests.chaos import traces
from tests.chaos.parts import Nap, until
from tests.servers import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_SECONDS = 6.0


@dataclass(frozen=True)
class Line:
    """A network cable between this host and a network namespace, with a network of its own.

    A killed test leaves its cable behind: with the same addresses, it would take the packets.
    """

    tag: str

    @property
    def name(self) -> str:
        return f"kg{self.tag}"

    def address(self, end: int) -> str:
        return f"10.213.{int(self.tag[:2], 16)}.{int(self.tag[2:4], 16) // 4 * 4 + end}"

    def lay(self) -> None:
        there = ("-n", self.name)
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "name", "wan", "netns", self.name)
        ip("addr", "add", f"{self.address(1)}/30", "dev", self.name)
        ip(*there, "addr", "add", f"{self.address(2)}/30", "dev", "wan")
        ip(*there, "link", "set", "lo", "up")
        ip(*there, "link", "set", "wan", "up")
        self.plug_in()

    def cut(self) -> None:
        """Let every packet be lost, in silence."""
        ip("link", "set", self.name, "down")

    def plug_in(self) -> None:
        ip("link", "set", self.name, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def line() -> Iterator[Line]:
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    line = Line(uuid.uuid4().hex[:8])
    try:
        line.lay()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        yield line
    finally:
        ip("netns", "del", line.name)


@pytest.fixture
def platform(line: Line, tmp_path: Path) -> Iterator[Distributed]:
    """The platform, reachable from the other host, where its only worker is."""
    require(PostgreSQL, RabbitMQ)
    options = ["--lease", str(LEASE_SECONDS)]
    data = tmp_path / f"kgym-{uuid.uuid4().hex}"
    with Distributed(data, host=line.address(1), workers=[], options=options) as platform:
        words = ["ip", "netns", "exec", line.name, sys.executable, "-m", "kgym_cli", "worker"]
        worker = Program("worker", [*words, "--kinds", "build"], data / "log" / "there.log")
        worker.env = {**platform.worker_env, "KGYM_SERVER": platform.url}
        worker.spawn()
        try:
            yield platform
        finally:
            worker.stop()
    assert traces.processes(data.name) == []


@pytest.fixture
def client(platform: Distributed) -> Iterator[Client]:
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", "token", "create", "me", "--scope", "admin", "--json"],
        env={**os.environ, "KGYM_DATABASE": platform.database.url},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    with Client(platform.url, json.loads(done.stdout)["token"]) as client:
        yield client


@pytest.mark.exhaustive
def test_jobs_end_right_after_the_workers_host_was_cut_off(
    line: Line, client: Client, fake_build: BuildSpec
) -> None:
    def job(request: JobRequest) -> JobView:
        return client.job(client.submit(request).id)

    assert client.wait(job(JobRequest(steps=[fake_build])).id).state is State.SUCCEEDED

    # Cut for longer than a lease: the attempt is lost, the worker ends it, and does it again.
    long = job((nap := Nap(25)).request(fake_build))
    until(nap.lasts, 60)
    waiting = job(JobRequest(steps=[fake_build]))
    line.cut()
    until(lambda: client.job(long.id).steps[0].state is State.QUEUED, 30)
    line.plug_in()
    assert client.wait(long.id).state is State.SUCCEEDED
    assert client.job(long.id).steps[0].attempt == 2
    assert client.wait(waiting.id).state is State.SUCCEEDED

    # Cut while the build ends: its result waits for the line, and counts.
    short = job((nap := Nap(2)).request(fake_build))
    until(nap.lasts, 60)
    line.cut()
    until(lambda: not nap.lasts(), 30)
    line.plug_in()
    assert client.wait(short.id).state is State.SUCCEEDED
    assert client.job(short.id).steps[0].attempt == 1
