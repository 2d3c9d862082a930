"""`kgym gcp`: a deployment comes, is shown, and goes with nothing left."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.platforms.servers import Program, free_port
from kgym_hosts.gcp.connection import Cloud
from kgym_hosts.gcp.platform import CloudPlatform
from tests.cli.conftest import Kgym
from tests.google.cloud_project.server import CloudProject
from tests.hosts.deployments import TEXT, deployment

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


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
    assert {part["done"] for part in made.json["parts"]} == {"made"}
    shown = kgym("gcp", "status", *at).json
    assert shown["emulated"] is True
    assert [host["pool"] for host in shown["hosts"]] == ["build", "scheduler"]
    assert shown["hosts"] == made.json["hosts"]
    cost = kgym("gcp", "cost", *at).json
    build = next(pool for pool in cost["pools"] if pool["pool"] == "build")
    assert build["dollars_per_hour"] == 0.2
    assert build["most_per_hour"] == 0.8
    assert 0 < build["so_far"] < 0.1
    assert kgym("gcp", "down", *at).status == 0
    assert cloud.left == []
    assert kgym("gcp", "status", *at).json["hosts"] == []


def test_a_loop_goes_on_while_the_scheduler_is_away(
    cloud: CloudProject, kgym: Kgym, tmp_path: Path, data: Path
) -> None:
    file, port = tmp_path / "farm.toml", free_port()
    none = deployment(tmp_path, TEXT.replace("least = 1", "least = 0"))
    CloudPlatform(Cloud(none.project, cloud.url), none).bring_up()
    file.write_text(f'domain = "kgym.example.org"\n{TEXT}')
    words = [sys.executable, "-m", "kgym_cli", "gcp", "scale", file, "--every", "0.2", "--json"]
    where = ["--endpoint", cloud.url, "--server", f"http://127.0.0.1:{port}"]
    loop = Program("scale", [*words, *where], tmp_path / "log")
    loop.spawn()
    try:
        away = lines(loop, lambda seen: len(seen) > 0)[0]
        assert away["fault"]["reason"] == "scheduler_unreachable"
        with Platform(data, port=port, work=False):
            rounds = lines(loop, lambda rounds: any(answer["actions"] for answer in rounds))
        (made,) = next(answer for answer in rounds if answer["actions"])["actions"]
        assert (made["action"], made["host"]) == ("add", "kgym-farm-build-1")
    finally:
        loop.stop()


def lines(
    loop: Program, enough: Callable[[list[dict[str, Any]]], bool], seconds: float = 90
) -> list[dict[str, Any]]:
    """What a loop has said, once it is enough."""
    ends = time.monotonic() + seconds
    while True:
        text = loop.log.read_text()
        rounds = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if enough(rounds):
            return rounds
        assert loop.pid is not None, text
        assert time.monotonic() < ends, text
        time.sleep(0.1)


def test_what_is_wrong_is_said_before_anything_is_made(kgym: Kgym, tmp_path: Path) -> None:
    file, key = tmp_path / "farm.toml", tmp_path / "key"
    file.write_text(TEXT)
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    refused = kgym("gcp", "up", file, "--ssh-key", key, "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_option")
    refused = kgym("gcp", "scale", file, "--server", "http://127.0.0.1:9", "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_deployment")  # no `domain`
    refused = kgym("gcp", "status", file, "--emulated", "--json")
    assert (refused.status, refused.json["reason"]) == (2, "not_emulated")
    file.write_text(TEXT.replace("least = 1", "least = 9"))
    refused = kgym("gcp", "status", file, "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_deployment")
