"""A deployment comes and goes on a server that answers as Google Cloud does, with its faults."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_hosts.deployment import Deployment
from kgym_hosts.gcp.connection import Cloud
from kgym_hosts.gcp.platform import CloudPlatform, Part
from tests.google.cloud_project.server import CloudProject
from tests.hosts.deployments import TEXT, deployment
from tests.refused import refused

pytestmark = pytest.mark.thorough  # Google's library takes seconds to import

ALL = ["addresses/kgym-farm", "disks/kgym-farm-build", "disks/kgym-farm-scheduler"]
ALL += [f"firewalls/kgym-farm-{name}" for name in ("clients", "ssh", "workers")]
ALL += ["instances/kgym-farm-build", "instances/kgym-farm-scheduler"]
ALL += ["networks/kgym-farm", "routers/kgym-farm", "subnetworks/kgym-farm"]
ALL += [f"kgym-farm-{who}@kgym-test.iam.gserviceaccount.com" for who in ("scheduler", "worker")]
ALL += ["bucket/kgym-test-farm"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudProject]:
    with CloudProject(tmp_path / "cloud") as server:
        yield server


@pytest.fixture
def farm(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


def platform(cloud: CloudProject, farm: Deployment) -> CloudPlatform:
    return CloudPlatform(Cloud(farm.project, cloud.url), farm, "ssh-ed25519 AAAA test")


def there(cloud: CloudProject) -> list[str]:
    """All that is there; of hosts that are numbered by chance, the pool."""
    return [name.rpartition("-")[0] if "-build-" in name else name for name in cloud.left]


def test_a_deployment_comes_once_and_goes_whole(cloud: CloudProject, farm: Deployment) -> None:
    parts: list[Part] = []
    farm_platform = platform(cloud, farm)
    hosts = farm_platform.bring_up(parts.append)
    assert there(cloud) == ALL
    assert {host.pool for host in hosts} == {"scheduler", "build"}
    assert {part.done for part in parts} == {"made"}
    parts.clear()
    assert platform(cloud, farm).bring_up(parts.append) == hosts
    assert {part.done for part in parts} == {"there"}
    # What somebody else has in the project stays.
    cloud.compute.insert("networks", "global", {"name": "default"}, "")
    farm_platform.take_down()
    assert cloud.left == ["networks/default"]
    farm_platform.take_down()


def test_hosts_are_as_the_deployment_says(cloud: CloudProject, farm: Deployment) -> None:
    platform(cloud, farm).bring_up()
    hosts = {host["labels"]["kgym-pool"]: host for host in cloud.compute.all("instances")}
    build, scheduler = hosts["build"], hosts["scheduler"]
    assert build["labels"] == {"kgym-deployment": "farm", "kgym-pool": "build"}
    assert build["disks"][0]["initializeParams"]["labels"] == build["labels"]
    assert build["scheduling"]["provisioningModel"] == "SPOT"
    assert build["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert "accessConfigs" not in build["networkInterfaces"][0]
    address = cloud.compute.get("addresses", "us-central1", "kgym-farm")["address"]
    assert scheduler["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == address
    # Their accounts may use the bucket, and have no other right.
    assert cloud.policies["kgym-test-farm"]["bindings"] == [
        {
            "role": "roles/storage.objectUser",
            "members": [
                f"serviceAccount:kgym-farm-{role}@kgym-test.iam.gserviceaccount.com"
                for role in ("scheduler", "worker")
            ],
        }
    ]
    assert cloud.bucket_settings["kgym-test-farm"]["iamConfiguration"] == {
        "uniformBucketLevelAccess": {"enabled": True},
        "publicAccessPrevention": "enforced",
    }
    clients = cloud.compute.get("firewalls", "global", "kgym-farm-clients")
    assert clients["sourceRanges"] == ["203.0.113.0/24"]
    assert clients["targetTags"] == ["kgym-farm-scheduler"]


@pytest.mark.parametrize("kind", ["status", "reset", "lost_answer"])
def test_each_call_may_fail_once(
    cloud: CloudProject, farm: Deployment, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("networks", "subnetworks", "firewalls", "addresses", "routers", "instances"):
        cloud.faults.add(f"POST .*/{what}", kind, 503)  # type: ignore[arg-type]
        cloud.faults.add(f"DELETE .*/{what}", kind, 429)  # type: ignore[arg-type]
        cloud.faults.add(f"GET .*/{what}", kind, 500)  # type: ignore[arg-type]
    for what in ("POST /storage/v1/b", "DELETE /storage/v1/b", "PUT .*iam", "POST .*Accounts"):
        cloud.faults.add(what, kind, 503)  # type: ignore[arg-type]
    cloud.faults.add("GET .*operations", kind, 503)  # type: ignore[arg-type]
    farm_platform = platform(cloud, farm)
    farm_platform.bring_up()
    assert there(cloud) == ALL
    cloud.replace("kgym-test-farm", "a/b", b"x")
    farm_platform.take_down()
    assert cloud.left == []
    assert cloud.faults.left == 0


@pytest.mark.parametrize("step", range(0, 12, 3))
def test_a_failure_half_way_is_gone_on_with(
    cloud: CloudProject, farm: Deployment, step: int
) -> None:
    made = 0

    class Killed(Exception):
        pass

    def report(_: Part) -> None:
        nonlocal made
        made += 1
        if made > step:
            raise Killed

    with pytest.raises(Killed):
        platform(cloud, farm).bring_up(report)
    platform(cloud, farm).bring_up()
    assert there(cloud) == ALL
    made = 0
    with pytest.raises(Killed):
        platform(cloud, farm).take_down(report)
    platform(cloud, farm).take_down()
    assert cloud.left == []


def test_the_next_zone_is_taken_where_one_is_exhausted(
    cloud: CloudProject, farm: Deployment
) -> None:
    farm_platform = platform(cloud, farm)
    farm_platform.bring_up()
    cloud.compute.exhausted = {"us-central1-a"}
    there = farm_platform.instances.all()
    assert len(farm_platform.instances.make("build", 3, there)) == 3
    assert {host.zone for host in farm_platform.instances.all()[1:4]} <= {
        "us-central1-a",
        "us-central1-b",
    }
    cloud.compute.exhausted = {"us-central1-a", "us-central1-b"}
    with refused("cloud_stockout", "does not have enough", InfrastructureError):
        farm_platform.instances.make("build", 2, farm_platform.instances.all())
    cloud.compute.exhausted, cloud.compute.quota = set(), 5
    with refused("cloud_quota", kind=InfrastructureError):
        farm_platform.instances.make("build", 1, farm_platform.instances.all())


def test_what_is_anothers_is_never_taken(cloud: CloudProject, farm: Deployment) -> None:
    cloud.compute.insert("networks", "global", {"name": "kgym-farm"}, "")
    farm_platform = platform(cloud, farm)
    with pytest.raises(Conflict, match="not of this deployment"):
        farm_platform.bring_up()
    with pytest.raises(Conflict, match="not of this deployment"):
        farm_platform.take_down()
    assert cloud.left == ["networks/kgym-farm"]


def test_many_hosts_come_in_pages(cloud: CloudProject, tmp_path: Path) -> None:
    cloud.page = 7
    farm = deployment(tmp_path, TEXT.replace("least = 1\nmost = 4", "least = 30\nmost = 30"))
    farm_platform = platform(cloud, farm)
    assert len(farm_platform.bring_up()) == 31
    farm_platform.take_down()
    assert cloud.left == []


def test_a_bucket_can_be_kept(cloud: CloudProject, tmp_path: Path) -> None:
    farm = deployment(tmp_path, f"keep_bucket = true\n{TEXT}")
    farm_platform = platform(cloud, farm)
    farm_platform.bring_up()
    cloud.replace("kgym-test-farm", "a", b"x")
    farm_platform.take_down()
    assert cloud.left == ["bucket/kgym-test-farm"]
    farm_platform.bring_up()  # it is the same again


def test_a_host_starts_a_worker_and_tells_its_version(cloud: CloudProject, tmp_path: Path) -> None:
    """The startup script itself, on a machine that is this one: what it starts writes down how."""
    program, record = tmp_path / "kgym", tmp_path / "record"
    program.write_text(
        f'#!/bin/sh\n[ "$2" != --version ] || {{ echo kgym, version 9.8.7; exit; }}\n'
        f'echo "$* token=$KGYM_TOKEN" >>{record}\n'
        f'tail -n 2 "$SSL_CERT_FILE" >{record}.trusted\n'
        f'[ "$(wc -l <{record})" -gt 1 ]\n'  # fails once
    )
    program.chmod(0o755)
    settings = f'domain = "kgym.example.org"\nsecret = "farm"\nprogram = "{program} -x"\n'
    farm = deployment(tmp_path, f'{settings}setup = "echo setup >>{record}.setup"\n{TEXT}')
    farm_platform = platform(cloud, farm)
    with pytest.raises(UserError, match="no secret farm"):
        farm_platform.bring_up()
    certificate = "-----BEGIN CERTIFICATE-----\nof the scheduler\n"
    cloud.secrets["farm"] = f"the workers' token\n{certificate}"
    (host, _) = farm_platform.bring_up()
    assert farm_platform.instances.versions([host]) == {}
    instance = cloud.compute.instance(host.name)
    assert instance["serviceAccounts"][0]["scopes"][0].endswith("/cloud-platform")
    script = tmp_path / "startup-script"
    metadata = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    script.write_text(metadata["startup-script"])
    environment = {
        "PATH": os.environ["PATH"],
        "GCE_METADATA_HOST": f"{cloud.url.removeprefix('http://')}/metadata/{host.name}",
        "SECRET_MANAGER_EMULATOR_HOST": cloud.url,
        "KGYM_DATA": str(tmp_path / "data"),
    }
    # `sleep` is what the script does between two starts of a worker that has failed.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sleep").symlink_to("/bin/true")
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    subprocess.run(["sh", script], env=environment, check=True, timeout=60)
    words = (
        "-x worker --host-name kgym-farm-build-1 --server https://kgym.example.org"
        " --storage gs://kgym-test-farm/kgym --kinds build,check --slots 2"
        " token=the workers' token"
    )
    assert record.read_text().splitlines() == [words, words]
    assert (tmp_path / "record.setup").read_text() == "setup\n"
    assert (tmp_path / "record.trusted").read_text() == certificate
    assert farm_platform.instances.versions([host]) == {host.name: "9.8.7"}
    farm_platform.take_down()
    assert cloud.left == []
    assert cloud.secret_policies["farm"]["bindings"] == []
    assert cloud.secrets


def test_without_a_domain_hosts_are_bare(cloud: CloudProject, farm: Deployment) -> None:
    (host, _) = platform(cloud, farm).bring_up()
    items = cloud.compute.instance(host.name)["metadata"]["items"]
    assert "startup-script" not in {item["key"] for item in items}


def test_permission_and_permanent_refusals_have_their_own_words(
    cloud: CloudProject, farm: Deployment
) -> None:
    cloud.faults.add("POST .*/networks", "status", 403)
    with pytest.raises(Exception, match="do not allow this") as failed:
        platform(cloud, farm).bring_up()
    assert getattr(failed.value, "reason", None) == "cloud_forbidden"
    cloud.faults.add("POST .*/networks", "status", 400)
    with refused("cloud_refused", kind=InfrastructureError):
        platform(cloud, farm).bring_up()
