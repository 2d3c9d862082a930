"""The chaos run: many jobs while every part is killed, again and again.

KGYM_TEST_SEED repeats a run: the jobs, what is killed, and when.
"""

import os
import random
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kgym.api.jobs import JobFilter, JobView
from kgym.api.steps import BuildSpec, StepKind
from kgym.client import Client
from kgym.errors import InfrastructureError
from kgym_cli.platforms.distributed_platform import Distributed
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ
from kgym_cli.platforms.step_registry import WorkerShape
from tests.chaos import load, traces
from tests.conftest import SEED
from tests.servers import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORKERS = 3
SCHEDULERS = 2
LEASE_SECONDS = 8.0
# How many jobs there are, and how often each part is killed meanwhile.
SHORT = 120, {"worker": 4, "scheduler": 3, "broker": 2, "database": 2}
LONG = 320, {"worker": 10, "scheduler": 6, "broker": 4, "database": 5}
GAP_SECONDS = (1.0, 6.0)
# How long the jobs may take once the last part was killed.
PATIENCE_SECONDS = 300.0


@dataclass
class Chaos:
    """Kills parts of a platform at times and in an order that the random numbers tell."""

    platform: Distributed
    rng: random.Random
    planned: dict[str, int]
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        deck = [kind for kind, number in self.planned.items() for _ in range(number)]
        self.rng.shuffle(deck)
        at = 3.0
        self._plan: list[tuple[float, str, int]] = []
        for kind in deck:
            self._plan.append((at, kind, self.rng.randrange(WORKERS)))
            at += self.rng.uniform(*GAP_SECONDS)
        self.seconds = at

    def run(self) -> None:
        """Kill, and let the platform start again what was killed."""
        began = time.monotonic()
        for at, kind, number in self._plan:
            while time.monotonic() < began + at:
                self.platform.tend()
                time.sleep(0.05)
            self._kill(kind, number)

    def _kill(self, kind: str, number: int) -> None:
        platform = self.platform
        victim = {
            "worker": platform.workers[number % WORKERS],
            "scheduler": platform.schedulers[number % SCHEDULERS],
            "broker": platform.broker,
            "database": platform.database,
        }[kind]
        if victim.pid is not None:  # it may not be back yet
            self.kills[kind] += 1
            os.kill(victim.pid, signal.SIGKILL)  # it alone: what it started is its own business


@pytest.mark.parametrize(
    ("number", "kills"),
    [
        pytest.param(*SHORT, id="short"),
        pytest.param(*LONG, id="long", marks=pytest.mark.exhaustive),
    ],
)
def test_every_job_ends_once_and_right_while_every_part_is_killed(
    number: int,
    kills: dict[str, int],
    tmp_path: Path,
    fake_build: BuildSpec,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require(PostgreSQL, RabbitMQ)
    data = tmp_path / f"kgym-{uuid.uuid4().hex}"  # a name that stands nowhere else
    rng = random.Random(SEED)
    builds = load.variants(fake_build)
    outcomes = load.expected(builds, tmp_path / "expected")
    plan = load.plan(rng, number)
    began = time.monotonic()
    with Distributed(
        data,
        schedulers=SCHEDULERS,
        workers=[WorkerShape((StepKind.BUILD,))] * WORKERS,
        options=["--lease", str(LEASE_SECONDS)],
    ) as platform:
        chaos = Chaos(platform, rng, kills)
        requests = [load.request(builds, names) for names in plan]
        submitter = load.Submitter(platform.url, requests, chaos.seconds * 0.9)
        submitter.start()
        try:
            chaos.run()
            jobs = finished(platform, submitter)
            while not traces.is_swept(data):  # by workers that were started again just now
                platform.tend()
                time.sleep(0.1)
            wrong = [
                fault
                for job_id, names in zip(submitter.ids, plan, strict=True)
                for fault in load.faults(jobs[job_id], names, outcomes)
            ]
            doubled = [job_id for job_id in jobs if endings(platform, job_id) != {1}]
            attempts = Counter(
                platform.database.query("SELECT coalesce(outcome, 'open') FROM attempts").split()
            )
        finally:
            submitter.stopped.set()
            submitter.join()
    with capsys.disabled():
        print(
            f"chaos: {len(jobs)} jobs of {sum(map(len, plan))} steps, kills {dict(chaos.kills)}, "
            f"attempts {dict(attempts)}, submissions repeated {submitter.repeats}, "
            f"lease expiries {attempts['expired']}, seconds {time.monotonic() - began:.0f}"
        )
    assert wrong == []
    assert doubled == []
    assert len(jobs) == len(set(submitter.ids)) == number
    assert attempts["open"] == 0
    assert traces.processes(data.name) == []
    assert traces.mounts(data.name) == []
    assert traces.leftovers(data) == []


def finished(platform: Distributed, submitter: load.Submitter) -> dict[int, JobView]:
    """All jobs, once they have finished."""
    limit = time.monotonic() + PATIENCE_SECONDS
    with Client(platform.url) as client:
        while True:
            platform.tend()
            time.sleep(0.5)
            try:
                jobs = {job.id: job for job in client.jobs(JobFilter(limit=200))}
            except InfrastructureError:
                jobs = {}
            unfinished = [job for job in jobs.values() if not job.state.final]
            if not submitter.is_alive() and jobs and not unfinished:
                return jobs
            if time.monotonic() > limit:
                pytest.fail(f"{len(jobs)} jobs, of which these are stuck: {unfinished[:5]}")


def endings(platform: Distributed, job_id: int) -> set[int]:
    """How often each step of the job came to an end, according to its events."""
    with Client(platform.url) as client:
        ended = Counter(
            event.step
            for event in client.events(job_id)
            if event.kind == "state"
            and event.step is not None
            and event.data["state"] in {"succeeded", "failed", "aborted", "skipped"}
        )
    return set(ended.values())
