"""Hosts come and go as steps do: a real scheduler, real workers, a server that is the cloud."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec
from kgym.client import Client
from kgym.errors import UserError
from kgym_cli.platforms.embedded_platform import Platform
from kgym_hosts import prices
from kgym_hosts.gcp.connection import Cloud
from kgym_hosts.gcp.instances import CloudHost
from kgym_hosts.gcp.platform import CloudPlatform
from kgym_hosts.gcp.scaler import Done, Scaler, limits_of
from tests.chaos.parts import until
from tests.google.cloud_project.server import CloudProject
from tests.hosts.deployments import TEXT, deployment
from tests.hosts.thread_hosts import ThreadHosts

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(240)]

FARM = TEXT.replace("least = 1", "least = 1\nstep_seconds = 600.0")


@dataclass
class Farm:
    """All that a test of scaling has."""

    cloud: CloudProject
    hosts: ThreadHosts
    client: Client
    parts: CloudPlatform
    folder: Path
    now: list[float] = field(default_factory=lambda: [1000.0])

    def scaler(self, patient: bool = False) -> Scaler:
        farm, table = deployment(self.folder, FARM), prices.shipped_prices()
        clock = self.now.__getitem__
        return Scaler(farm, self.parts.instances, self.client, table, patient, lambda: clock(0))

    def pool(self) -> dict[str, CloudHost]:
        return {host.name: host for host in self.parts.instances.all() if host.pool == "build"}

    def submit(self, build: BuildSpec, jobs: int) -> None:
        self.client.submit_all([JobRequest(steps=[build])] * jobs)

    def runs(self) -> int:
        return sum(len(worker.running) for worker in self.client.workers())

    def live(self) -> int:
        return sum(worker.state == "live" for worker in self.client.workers())

    def stopped(self) -> int:
        return sum(host.stopped for host in self.pool().values())

    def is_idle(self) -> bool:
        """Whether all steps have ended: between two claims, none runs while some are queued."""
        return not any(queue.queued + queue.running for queue in self.client.queues())


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    hosts = ThreadHosts(tmp_path)
    with (
        Platform(tmp_path / "data", work=False) as platform,
        CloudProject(tmp_path / "cloud", machines=hosts) as cloud,
        Client(platform.url) as client,
    ):
        settings = deployment(tmp_path, FARM)
        parts = CloudPlatform(Cloud(settings.project, cloud.url), settings, "", platform.url)
        parts.bring_up()
        try:
            yield Farm(cloud, hosts, client, parts, tmp_path)
        finally:
            hosts.finish.set()
            hosts.stop_all()


def grow(farm: Farm, scaler: Scaler, steps: int) -> list[Done]:
    """Make rounds until so many steps run: one may see a step neither waiting nor running."""
    done: list[Done] = []

    def runs() -> bool:
        done.extend(scaler.round().done)
        return farm.runs() == steps

    until(runs)
    return done


def names(done: list[Done], action: str) -> list[str | None]:
    return sorted(item.host or "" for item in done if item.action == action)


def test_a_queue_grows_and_empties_and_hosts_follow(farm: Farm, fake_build: BuildSpec) -> None:
    scaler = farm.scaler()
    assert scaler.round().done == []
    farm.submit(fake_build, 5)
    added = names(grow(farm, scaler, 5), "add")
    assert added == ["kgym-farm-build-2", "kgym-farm-build-3"]
    assert scaler.round().done == []
    farm.hosts.finish.set()
    until(farm.is_idle)
    assert scaler.round().done == []  # they were needed just now
    farm.now[0] += 700
    drained = names(scaler.round().done, "drain")
    assert len(drained) == 2
    until(lambda: farm.stopped() == 2)
    assert names(scaler.round().done, "remove") == drained
    assert len(farm.pool()) == 1
    assert scaler.round().done == []


def test_what_runs_is_never_removed(farm: Farm, fake_build: BuildSpec) -> None:
    farm.submit(fake_build, 5)
    grow(farm, farm.scaler(), 5)
    running = {worker.id: len(worker.running) for worker in farm.client.workers()}
    # Another loop, which knows of no time before, and a file with a bound of no host at all.
    smaller = deployment(farm.folder, FARM.replace("least = 1", "least = 0"))
    pools = {"build": smaller.pools["build"].model_copy(update={"most": 0})}
    scaler = replace(farm.scaler(), deployment=smaller.model_copy(update={"pools": pools}))
    drained = names(scaler.round().done, "drain")
    assert len(drained) == 3
    for _ in range(3):
        farm.now[0] += 2000
        assert scaler.round().done == []
    assert {worker.id: len(worker.running) for worker in farm.client.workers()} == running
    farm.hosts.finish.set()
    until(lambda: not farm.client.workers())
    until(lambda: farm.stopped() == len(farm.pool()))
    assert names(scaler.round().done, "remove") == drained
    assert farm.pool() == {}


def test_a_host_that_is_taken_away_is_replaced(farm: Farm, fake_build: BuildSpec) -> None:
    farm.submit(fake_build, 5)
    scaler = farm.scaler()
    grow(farm, scaler, 5)
    farm.cloud.compute.preempt("kgym-farm-build-2")
    until(lambda: farm.live() == 2)
    assert names(grow(farm, scaler, 5), "add") == ["kgym-farm-build-2"]
    # One whose system has shut down is removed, and comes anew.
    farm.cloud.compute.stopped("kgym-farm-build-3")
    farm.hosts.stop("kgym-farm-build-3")
    until(lambda: farm.live() == 2)
    done = grow(farm, scaler, 5)
    assert names(done, "remove") == ["kgym-farm-build-3"]
    assert len(names(done, "add")) == 1


def test_a_host_whose_worker_never_comes_is_given_up(farm: Farm, fake_build: BuildSpec) -> None:
    scaler = farm.scaler()
    farm.submit(fake_build, 5)
    until(lambda: farm.runs() == 2)
    farm.hosts.silent = True
    added = names(scaler.round().done, "add")
    assert len(added) == 2
    assert scaler.round().done == []  # from here on they are waited for
    farm.now[0] += 800
    assert scaler.round().done == []
    farm.now[0] += 200
    farm.hosts.silent = False
    assert names(scaler.round().done, "remove") == added
    farm.now[0] += 100  # after a failure, the next waits a while
    assert len(names(scaler.round().done, "add")) == 2


def two_rounds(farm: Farm) -> None:
    loops = [threading.Thread(target=farm.scaler().round) for _ in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()


def test_two_loops_at_once_make_each_host_once(farm: Farm, fake_build: BuildSpec) -> None:
    farm.submit(fake_build, 8)
    until(lambda: farm.runs() == 2)
    farm.cloud.delay = 0.2
    two_rounds(farm)
    assert sorted(farm.pool()) == [f"kgym-farm-build-{number}" for number in range(1, 5)]
    farm.hosts.finish.set()
    until(farm.is_idle)
    until(lambda: farm.live() == 4)  # a host without a worker cannot be drained
    farm.now[0] += 700
    two_rounds(farm)
    until(lambda: farm.stopped() == 3)


def test_each_call_to_the_cloud_may_fail(farm: Farm, fake_build: BuildSpec) -> None:
    farm.submit(fake_build, 5)
    for what, status in (
        ("POST .*/instances", 503),
        ("GET .*/aggregated", 429),
        ("GET .*operations", 503),
        ("DELETE .*/instances", 500),
    ):
        for kind in ("status", "reset", "lost_answer"):
            farm.cloud.faults.add(what, kind, status)
    scaler = farm.scaler()
    grow(farm, scaler, 5)
    assert len(farm.pool()) == 3
    farm.hosts.finish.set()
    until(farm.is_idle)
    farm.now[0] += 700

    def shrunk() -> bool:
        scaler.round()
        return len(farm.pool()) == 1

    until(shrunk)
    assert farm.cloud.faults.left == 0


def test_what_cannot_be_had_is_named_and_asked_for_again(farm: Farm, fake_build: BuildSpec) -> None:
    farm.submit(fake_build, 5)
    until(lambda: farm.runs() == 2)
    scaler = farm.scaler()
    farm.cloud.compute.exhausted = {"us-central1-a", "us-central1-b"}
    (failed,) = scaler.round().done
    assert failed.host is None
    assert failed.fault is not None
    assert failed.fault.reason == "cloud_stockout"
    farm.cloud.compute.exhausted = set()
    assert scaler.round().done == []  # not at once
    farm.now[0] += 61
    assert len(scaler.round().done) == 2


def test_a_loop_that_begins_keeps_what_is_there_for_a_while(farm: Farm) -> None:
    build = farm.parts.instances.make("build", 2, farm.pool().values())
    until(lambda: farm.live() == 3)
    scaler = farm.scaler(patient=True)
    assert scaler.round().done == []
    farm.now[0] += 300
    assert scaler.round().done == []
    farm.now[0] += 301
    assert len(scaler.round().done) == len(build)


def test_a_budget_needs_the_price_of_the_schedulers_host(tmp_path: Path) -> None:
    text = f"{FARM}\n[scaling]\nmost_dollars_per_hour = 1.0\nwait_seconds = 60.0\n"
    with pytest.raises(UserError, match="is unknown"):
        limits_of(deployment(tmp_path, text), prices.shipped_prices())
    priced = text.replace("[scheduler]", "[scheduler]\ndollars_per_hour = 0.5")
    limits = limits_of(deployment(tmp_path, priced), prices.shipped_prices())
    assert (limits.wait_seconds, limits.most_dollars_per_hour) == (60.0, 1.0)
    assert limits.fixed_dollars_per_hour == 0.5
