"""Workers as tasks of a job array, on a Slurm cluster of one node, with the shipped batch file."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec, TarballSource
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from tests.chaos.parts import Nap, until
from tests.conftest import ROOT
from tests.hosts.slurm_cluster import require_slurm, slurm, slurm_cluster

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]
# The batch file's own options would ask for more than this machine has.
SMALL = {"SBATCH_MEM_PER_NODE": "128"}
BATCH = (ROOT / "deploy" / "slurm" / "workers.sh").read_text()
SECONDS = 90.0


@dataclass
class Cluster:
    """A cluster, and a platform without workers."""

    url: str
    folder: Path
    environment: dict[str, str]

    def kgym(self, *words: str) -> Any:
        """Run a `kgym slurm` command; return its answer."""
        done = subprocess.run(
            [sys.executable, "-m", "kgym_cli", "slurm", *words, "--json"],
            env={**os.environ, **self.environment, "KGYM_SERVER": self.url},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            check=True,
            timeout=SECONDS,
        )
        return json.loads(done.stdout)

    def up(self, most: int, time: str, signal: str = "B:TERM@1800") -> Any:
        """Submit workers with this time limit; the batch file is otherwise as it is shipped."""
        batch = self.folder / "workers.sh"
        text = BATCH.replace("--time=12:00:00", f"--time={time}").replace("B:TERM@1800", signal)
        batch.write_text(text.replace("-task=8", "-task=1").replace("=16G", "=128M"))
        return self.kgym("up", str(most), str(batch), "--slots", "1")


@pytest.fixture
def cluster(tmp_path: Path, fake_source: TarballSource) -> Iterator[Cluster]:
    require_slurm()
    work, programs = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    program = programs / "kgym"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kgym_cli "$@"\n')
    program.chmod(0o755)
    with Platform(tmp_path / "data", work=False) as platform, slurm_cluster(tmp_path) as variables:
        settings = tmp_path / "workers.env"
        lines = {
            "KGYM_SERVER": platform.url,
            "KGYM_STORAGE": tmp_path / "data" / "artifacts",
            "KGYM_SCRATCH": tmp_path / "scratch",
            "KGYM_SOURCES": Path(fake_source.url).parent,
            "KGYM_KINDS": "build",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        settings.write_text("".join(f"{key}='{value}'\n" for key, value in lines.items()))
        environment = {**variables, "HOME": str(work)}
        own = work / ".config" / "kgym"
        own.mkdir(parents=True)
        settings.rename(own / "workers.env")
        yield Cluster(platform.url, work, environment)


def test_steps_of_cancelled_and_requeued_workers_run_once_more(
    cluster: Cluster, fake_build: BuildSpec
) -> None:
    with Client(cluster.url) as client:
        assert cluster.up(5, "60")["added"] == 0  # nothing waits
        long = client.submit((nap := Nap(12)).request(fake_build))
        assert cluster.up(5, "60")["added"] == 1
        assert cluster.up(5, "60")["added"] == 0  # that one takes it
        until(nap.lasts, SECONDS)
        cluster.kgym("down", "--now")
        until(lambda: not nap.lasts(), SECONDS)
        until(lambda: client.job(long.id).steps[0].state is State.QUEUED, SECONDS)
        until(lambda: not cluster.kgym("status"), SECONDS)

        assert cluster.up(5, "60")["added"] == 1
        until(nap.lasts, SECONDS)
        (task,) = cluster.kgym("status")
        assert task["state"] == "RUNNING"
        slurm(cluster.environment, "scontrol", "requeue", task["task"])
        until(lambda: not nap.lasts(), SECONDS)
        others = [client.submit(JobRequest(steps=[fake_build])) for _ in range(3)]
        done = client.wait(long.id)
        assert done.state is State.SUCCEEDED
        assert done.steps[0].attempt == 3
        assert {client.wait(job.id).steps[0].attempt for job in others} == {1}


@pytest.mark.exhaustive
def test_workers_drain_before_their_time_limit(cluster: Cluster, fake_build: BuildSpec) -> None:
    with Client(cluster.url) as client:
        # Slurm keeps limits in minutes, and signals up to a minute early.
        kept = client.submit((nap := Nap(75)).request(fake_build))
        later = client.submit(JobRequest(steps=[fake_build]))
        cluster.up(1, "3", "B:TERM@100")
        until(nap.lasts, SECONDS)
        assert client.wait(kept.id).steps[0].attempt == 1  # it was finished, after the signal
        until(lambda: not cluster.kgym("status"), SECONDS)
        assert client.job(later.id).steps[0].state is State.QUEUED

        cut = client.submit((endless := Nap(86_415)).request(fake_build))
        cluster.up(1, "2", "B:TERM@5")
        until(endless.lasts, 2 * SECONDS)
        assert client.wait(later.id).steps[0].attempt == 1
        until(lambda: not endless.lasts(), 2 * SECONDS)
        until(lambda: client.job(cut.id).steps[0].state is State.QUEUED, SECONDS)
        client.abort(cut.id)
