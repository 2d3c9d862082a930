"""Deployment files: what is read, and what is refused."""

from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym_hosts.deployment import read_deployment
from tests.hosts.deployments import TEXT, deployment
from tests.refused import refused


def test_a_deployment_is_read(tmp_path: Path) -> None:
    farm = deployment(tmp_path)
    assert farm.region == "us-central1"
    assert farm.pools["build"].most == 4
    assert farm.scaling.wait_seconds == 120


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("least = 1", "least = 5", "least (5) is more than most (4)"),
        ("us-central1-b", "europe-west1-b", "several regions"),
        ('name = "farm"', 'name = "Farm; rm -rf /"', "name"),
        ("[pools.build]", "[pools.scheduler]", "no pool can be named scheduler"),
        ('"check"]', '"build"]', "a kind is listed twice"),
        ("spot = true", "spott = true", "spott"),
        ("slots = 2", "slots = 0", "slots"),
        ("most = 4", "most = 100000", "most"),
        ('clients = ["203.0.113.0/24"]', "clients = []", "clients"),
        ('name = "farm"', 'name = "farm', "is not TOML"),
        ('project = "kgym-test"', "", "project"),
        ("us-central1-a", "../../global", "zones"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, fault: str) -> None:
    assert before in TEXT
    with refused("bad_deployment", kind=UserError) as error:
        deployment(tmp_path, TEXT.replace(before, after))
    assert fault in error.value.message
    assert "farm.toml" in error.value.message


@pytest.mark.attack
def test_a_file_is_bounded(tmp_path: Path) -> None:
    for text in ("#" * (2 << 20), "a = " + "[" * 100_000, "\x00\xff"):
        with pytest.raises(UserError, match="farm"):
            deployment(tmp_path, text)
    with pytest.raises(UserError, match="No such file"):
        read_deployment(tmp_path / "nothing.toml")
