"""`kgym gcp`: a deployment comes, is shown, and goes with nothing left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym_dev.cloud_project.server import CloudProject
from tests.cli.conftest import Kgym
from tests.hosts.deployments import TEXT

pytestmark = pytest.mark.thorough


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudProject]:
    with CloudProject(tmp_path / "cloud") as server:
        yield server


def test_a_deployment_comes_and_goes(cloud: CloudProject, kgym: Kgym, tmp_path: Path) -> None:
    file, key = tmp_path / "farm.toml", tmp_path / "key.pub"
    file.write_text(TEXT)
    key.write_text("ssh-ed25519 AAAA me\n")
    at = (file, "--endpoint", cloud.url, "--json")
    made = kgym("gcp", "up", *at, "--ssh-key", key)
    assert made.status == 0, made.err
    assert {one["done"] for one in made.json["parts"]} == {"made"}
    shown = kgym("gcp", "status", *at).json
    assert [one["pool"] for one in shown] == ["build", "scheduler"]
    assert shown == made.json["hosts"]
    cost = kgym("gcp", "cost", *at).json
    build = next(one for one in cost["pools"] if one["pool"] == "build")
    assert build["dollars_per_hour"] == 0.2
    assert build["most_per_hour"] == 0.8
    assert 0 < build["so_far"] < 0.1
    assert kgym("gcp", "down", *at).status == 0
    assert cloud.left == []
    assert kgym("gcp", "status", *at).json == []


def test_what_is_wrong_is_said_before_anything_is_made(kgym: Kgym, tmp_path: Path) -> None:
    file, key = tmp_path / "farm.toml", tmp_path / "key"
    file.write_text(TEXT)
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    refused = kgym("gcp", "up", file, "--ssh-key", key, "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_option")
    file.write_text(TEXT.replace("least = 1", "least = 9"))
    refused = kgym("gcp", "status", file, "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_deployment")
