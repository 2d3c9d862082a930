"""`kgym gcp --emulated`: a deployment on this machine does a job, and leaves nothing."""

import os
import re
import time
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec
from kgym.client import Client
from kgym_cli.gcp import emulated_project
from tests.cli.conftest import Kgym
from tests.hosts.deployments import TEXT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_up_a_job_down_and_nothing_is_left(
    kgym: Kgym, data: Path, tmp_path: Path, fake_build: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGYM_SOURCES", str(Path(fake_build.source.url).parent))  # type: ignore[union-attr]
    file = tmp_path / "farm.toml"
    file.write_text(TEXT)
    at = (file, "--emulated", "--json")
    try:
        made = kgym("gcp", "up", *at)
        assert made.status == 0, made.err
        assert made.json["emulated"] is True
        assert {part["done"] for part in made.json["parts"]} == {"made"}
        again = kgym("gcp", "up", *at).json
        assert {part["done"] for part in again["parts"]} == {"there"}
        with Client(made.json["scheduler"]) as client:
            job = client.wait(client.submit(JobRequest(steps=[fake_build])).id)
            assert job.state is State.SUCCEEDED, client.log(job.id)
            workers = [worker.id for worker in client.workers()]
        assert [worker.partition(":")[0] for worker in workers] == ["kgym-farm-build-1"]
        shown = kgym("gcp", "status", *at).json
        versions = {host["pool"]: host["version"] for host in shown["hosts"]}
        assert re.fullmatch(r"[0-9.]+.*", versions["build"])
        (there,) = [emulated_project.find(data, "kgym-test")]
        assert there is not None
        processes = list(there.look()["processes"].values())
        assert len(processes) == 2
        # A host that dies is noticed, and another comes, by the loop's round.
        os.kill(there.look()["processes"]["kgym-farm-build-1"], 9)
        ends = time.monotonic() + 60
        done: list[dict[str, str]] = []
        while {"remove", "add"} - {action["action"] for action in done}:
            assert time.monotonic() < ends
            done += kgym("gcp", "scale", *at, "--once").json["actions"]
        processes += there.look()["processes"].values()
        simulated = kgym("gcp", "simulate", *at, "--hours", "1").json
        assert simulated["jobs"] == simulated["steps"] == 1
    finally:
        gone = kgym("gcp", "down", *at)
    assert gone.status == 0, gone.err
    assert {part["done"] for part in gone.json["parts"]} == {"removed"}
    assert not list((data / "emulated-projects").iterdir())
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    _wait_for_end(data)  # the project's server has answered, and then ends
    assert kgym("gcp", "down", *at).json["parts"] == []


@pytest.mark.exhaustive
def test_a_project_whose_server_is_killed_leaves_nothing(
    kgym: Kgym, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(TEXT)
    made = kgym("gcp", "up", file, "--emulated", "--json")
    assert made.status == 0, made.err
    there = emulated_project.find(data, "kgym-test")
    assert there is not None
    os.kill(there.look()["pid"], 9)
    _wait_for_end(data)
    gone = kgym("gcp", "down", file, "--emulated", "--json")
    assert (gone.status, gone.json["parts"]) == (0, [])
    assert not list((data / "emulated-projects").iterdir())


def _wait_for_end(folder: Path) -> None:
    """Wait until no program runs that has this folder among its words."""
    ends = time.monotonic() + 60
    while _mentioning(folder):
        assert time.monotonic() < ends, _mentioning(folder)
        time.sleep(0.1)


def _mentioning(folder: Path) -> list[str]:
    """The programs that run with this folder among their words."""
    rounds = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            rounds.append(words)
    return rounds
