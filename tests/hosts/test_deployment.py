"""Deployment files: what is read, and what is refused."""

from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym_hosts.deployment import read_deployment
from tests.hosts.deployments import TEXT, deployment
from tests.refused import refused

# What the deployment has, what takes its place, and the fault that this is.
WRONG = [
    line.split("\t")
    for line in Path(__file__).with_name("bad_deployments.tsv").read_text().splitlines()
]


def test_a_deployment_is_read(tmp_path: Path) -> None:
    farm = deployment(tmp_path)
    assert farm.region == "us-central1"
    assert farm.pools["build"].most == 4
    assert farm.scaling.wait_seconds == 120


@pytest.mark.parametrize(("before", "after", "fault"), WRONG)
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
