"""`kgym up --distributed` as a user has it: it works, it cancels, it heals, it ends."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec, StepKind
from kgym.client import Client
from kgym_cli.platforms import running_platform
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ
from tests.chaos import traces
from tests.chaos.parts import Nap, until
from tests.servers import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

START_SECONDS = 90.0
STOP_SECONDS = 30.0
GIVEN_BACK = Nap(86_414)


@dataclass
class Up:
    """A running `kgym up --distributed`."""

    data: Path
    process: subprocess.Popen[bytes]
    url: str

    def client(self) -> Client:
        return Client(self.url)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    require(PostgreSQL, RabbitMQ)
    data = tmp_path_factory.mktemp("up") / f"kgym-{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", "up", "--distributed", "--port", "0"],
        env={**os.environ, "KGYM_DATA": str(data)},
    )
    try:
        until(lambda: running_platform.running(data) or process.poll() is not None, START_SECONDS)
        platform = running_platform.running(data)
        assert platform is not None
        yield Up(data, process, platform.url)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def workers(client: Client, kind: StepKind) -> set[str]:
    """The workers that do steps of this kind; one that was killed is known for a while."""
    return {worker.id for worker in client.workers() if kind in worker.kinds}


def kill_and_await_another(client: Client, kind: StepKind) -> None:
    until(lambda: workers(client, kind), 60)
    known = workers(client, kind)
    (victim,) = (name for name in known if Path(f"/proc/{pid_of(name)}").exists())
    os.kill(pid_of(victim), signal.SIGKILL)
    until(lambda: workers(client, kind) - known, 60)


def kgym(data: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command with this data folder."""
    return subprocess.run(
        [sys.executable, "-m", "kgym_cli", *words],
        env={**os.environ, "KGYM_DATA": str(data)},
        capture_output=True,
        check=False,
        timeout=60,
    )


def pid_of(worker: str) -> int:
    return int(worker.split(":")[1])


def test_a_job_runs_through_broker_database_and_worker(up: Up, fake_build: BuildSpec) -> None:
    with up.client() as client:
        job = client.wait(client.submit(JobRequest(steps=[fake_build, fake_build])).id)
    assert job.state is State.SUCCEEDED
    assert {"vmlinux", "step.log"} <= {artifact.name for artifact in job.steps[1].artifacts}


def test_commands_find_it_by_its_data_folder(up: Up) -> None:
    with up.client() as client:
        until(lambda: len(client.workers()) == len(StepKind), 60)
    listed = json.loads(kgym(up.data, "worker", "list", "--json").stdout)
    kinds = [worker["kinds"] for worker in listed]
    assert sorted(kinds) == sorted([kind] for kind in StepKind)


def test_an_abort_ends_what_a_worker_runs(
    up: Up, fake_build: BuildSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    with up.client() as client:
        job = client.submit((nap := Nap(86_413)).request(fake_build))
        until(nap.lasts, 60)
        began = time.monotonic()
        client.abort(job.id)
        until(lambda: not nap.lasts(), 60)
        seconds = time.monotonic() - began
        assert client.job(job.id).state is State.ABORTED
    with capsys.disabled():
        print(f"\nabort: the program ended after {seconds * 1000:.0f} ms")
    assert seconds < 20  # a moment, where nothing else keeps the machine busy


def test_a_drained_worker_ends_and_stays_away(up: Up) -> None:
    """One that was killed, twice, comes back meanwhile: the platform does look after its parts."""
    with up.client() as client:
        until(lambda: workers(client, StepKind.MINIMIZE), 60)
        (drained,) = workers(client, StepKind.MINIMIZE)
        client.drain(drained)
        until(lambda: not workers(client, StepKind.MINIMIZE), 60)
        for _ in range(2):
            kill_and_await_another(client, StepKind.BUILD)
        assert workers(client, StepKind.MINIMIZE) == set()
        assert not Path(f"/proc/{pid_of(drained)}").exists()


def test_another_platform_on_the_same_folder_is_refused(up: Up) -> None:
    done = kgym(up.data, "up", "--distributed", "--port", "0")
    assert done.returncode == 2
    assert up.url.encode() in done.stderr


def test_a_port_in_use_is_named_and_nothing_is_started(up: Up, tmp_path: Path) -> None:
    port = up.url.rpartition(":")[2]
    done = kgym(tmp_path / "other", "up", "--distributed", "--port", port)
    assert (done.returncode, f"port {port}".encode() in done.stderr) == (2, True)
    assert not list(tmp_path.glob("other/log/*"))


def test_sigterm_gives_back_what_runs_and_leaves_no_process(up: Up, fake_build: BuildSpec) -> None:
    with up.client() as client:
        client.submit(GIVEN_BACK.request(fake_build))
    until(GIVEN_BACK.lasts, 60)
    up.process.terminate()
    assert up.process.wait(STOP_SECONDS) == 130
    assert not GIVEN_BACK.lasts()
    assert traces.processes(up.data.name) == []
    assert traces.leftovers(up.data) == []


def test_what_was_given_back_is_done_by_the_next_and_a_kill_leaves_no_process(up: Up) -> None:
    """The data folder is taken up again; killed, the platform takes all its parts along."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", "up", "--distributed", "--port", "0"],
        env={**os.environ, "KGYM_DATA": str(up.data)},
    )
    try:
        until(GIVEN_BACK.lasts, START_SECONDS)
        with Client(running_platform.running(up.data).url) as client:
            (step,) = next(client.jobs()).steps
        assert (step.attempt, step.failure) == (2, None)  # given back, not waited for
    finally:
        process.kill()
        process.wait()
    until(lambda: not traces.processes(up.data.name), 10)
