"""The playbook against two hosts that SSH reaches, in network namespaces."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgym.client import Client
from tests.conftest import ROOT
from tests.hosts.ssh_hosts import inventory, ssh_hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

OWNER = "owner-token-of-the-test"


def play(book: str, hosts: Path, *more: str) -> dict[str, dict[str, int]]:
    """Run a playbook; return its counts by host."""
    program = Path(sys.executable).with_name("ansible-playbook")
    told = hosts.with_name("ansible.log")
    with told.open("w") as log:  # a pipe would be held by ssh, which keeps connections for a minute
        done = subprocess.run(
            [program, "-i", hosts, ROOT / "deploy" / book, *more],
            env={
                **os.environ,
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_HOME": str(hosts.parent / "ansible"),
                "ANSIBLE_NOCOLOR": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=150,
        )
    assert done.returncode == 0, told.read_text()
    return {
        found[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", found[2])}
        for found in re.finditer(r"^(\w+)\s+: (ok=.*)$", told.read_text(), re.M)
    }


def test_two_hosts_are_set_up_once_upgraded_one_by_one_and_put_back(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "first", "second") as (hosts, key):
        url = f"http://{hosts[0].address}:8420"
        file = tmp_path / "hosts.json"

        def describe(version: str) -> Path:
            return inventory(
                file,
                hosts,
                key,
                kgym_root="/srv/kgym",
                kgym_program=f"{sys.executable} -m kgym_cli",
                kgym_version=version,
                kgym_listen=hosts[0].address,
                kgym_port=8420,
                kgym_url=url,
                kgym_owner_token=OWNER,
                kgym_environment="KGYM_DATA=/srv/kgym/data",
                kgym_kinds="build",
                kgym_slots=1,
            )

        made = play("platform.yml", describe("1"))
        assert {name: one["failed"] for name, one in made.items()} == {"first": 0, "second": 0}
        with Client(url, OWNER) as client:
            before = _workers(client)
            assert len(before) == 1
            assert before[0].startswith("second:")
            again = play("platform.yml", file)
            assert {one["changed"] for one in again.values()} == {0}
            assert _workers(client) == before
            # Another version: the scheduler comes back, and the worker is another process.
            play("platform.yml", describe("2"))
            after = _workers(client)
            assert len(after) == 1
            assert after != before
            copies = sorted((hosts[0].srv / "kgym" / "backups").iterdir())
            assert len(copies) == 2  # one before each start by another version
            place = f"/srv/kgym/backups/{copies[-1].name}"
            play("restore.yml", file, "-e", f"kgym_copy={place}")
            _until(client, after[0])  # the copy knows the worker of before as well
        token = hosts[0].srv / "kgym" / "token"
        assert token.stat().st_mode & 0o077 == 0
        assert (hosts[1].srv / "kgym" / "worker" / "run").stat().st_mode & 0o077 == 0


def _workers(client: Client) -> list[str]:
    """The live workers, once there is one."""
    ends = time.monotonic() + 60
    while not (live := _live(client)) and time.monotonic() < ends:
        time.sleep(0.2)
    return live


def _until(client: Client, worker: str) -> None:
    ends = time.monotonic() + 60
    while worker not in _live(client):
        assert time.monotonic() < ends
        time.sleep(0.2)


def _live(client: Client) -> list[str]:
    return [one.id for one in client.workers() if one.state == "live"]
