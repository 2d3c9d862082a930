"""The playbook against two hosts that SSH reaches, in network namespaces."""

import os
import re
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec, KernelConfig, TarballSource
from kgym.client import Client
from kgym.errors import InfrastructureError
from tests.chaos.parts import until
from tests.conftest import ROOT
from tests.google.cloud_project.server import CloudProject
from tests.hosts.debian_nginx import nginx
from tests.hosts.ssh_hosts import SshHost, inventory, ssh_hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OWNER = "owner-token-of-the-test"
# How long the proxy waits for what a stranger wants.
HEAD_SECONDS = 10.0


def play(book: str, hosts: Path, *more: str, **environment: str) -> dict[str, dict[str, int]]:
    """Run a playbook; return its counts by host."""
    program = Path(sys.executable).with_name("ansible-playbook")
    output = hosts.with_name("ansible.log")
    with output.open("w") as log:  # ssh would hold a pipe open for a minute
        done = subprocess.run(
            [program, "-i", hosts, ROOT / "deploy" / book, *more],
            env={
                **os.environ,
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_HOME": str(hosts.parent / "ansible"),
                "ANSIBLE_NOCOLOR": "1",
                **environment,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=200,
        )
    assert done.returncode == 0, output.read_text()
    return {
        line[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[2])}
        for line in re.finditer(r"^(\w+)\s+: (ok=.*)$", output.read_text(), re.M)
    }


@pytest.mark.exhaustive
def test_two_hosts_are_set_up_once_upgraded_one_by_one_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (program := nginx()) is None:
        pytest.skip("there is no nginx, and Debian's package cannot be had")
    with (
        ssh_hosts(tmp_path, "first", "second") as (hosts, key),
        CloudProject(tmp_path / "cloud") as cloud,
    ):
        cloud.secrets["farm-owner"] = f"{OWNER}\n"
        monkeypatch.setenv("SECRET_MANAGER_EMULATOR_HOST", cloud.url)
        url = f"https://{hosts[0].address}:8443"
        file = tmp_path / "hosts.json"

        def describe(version: str) -> Path:
            return inventory(
                file,
                hosts,
                key,
                kgym_root="/srv/kgym",
                kgym_program=f"{sys.executable} -m kgym_cli",
                kgym_nginx=str(program),
                kgym_version=version,
                kgym_listen="127.0.0.1",
                kgym_port=8420,
                kgym_url=url,
                kgym_owner_token=_lookup("projects/kgym-test/secrets/farm-owner"),
                kgym_environment={"KGYM_DATA": "/srv/kgym/data"},
                kgym_secrets={"KGYM_MIRRORS": _lookup(secret)},
                kgym_kinds="build",
                kgym_slots=1,
            )

        secret = tmp_path / "secret"
        secret.write_text("/srv/no such folder\n")
        secret.chmod(0o600)
        made = play("platform.yml", describe("1"))
        failed = {name: counts["failed"] for name, counts in made.items()}
        assert failed == {"first": 0, "second": 0}
        _tls_is_verified(url, tmp_path / "kgym-ca.pem", file)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "kgym-ca.pem"))
        stranger = socket.create_connection((hosts[0].address, 8443), 5)
        came = time.monotonic()
        with closing(stranger), Client(url, OWNER) as client:
            before = _workers(client)
            assert len(before) == 1
            assert before[0].startswith("second:")
            _a_job_is_followed(client)
            _metrics_can_be_scraped(hosts[0], url)
            again = play("platform.yml", file)
            assert {counts["changed"] for counts in again.values()} == {0}
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
            until(lambda: after[0] in _live(client))  # the copy knows the worker of before as well
            stranger.settimeout(max(0.1, came + 2 * HEAD_SECONDS - time.monotonic()))
            assert stranger.recv(1) == b""  # who says nothing is not kept
        play("logs.yml", file, "-e", f"kgym_logs={tmp_path / 'logs'}")
        logs = {str(log.relative_to(tmp_path / "logs")) for log in tmp_path.glob("logs/*/*")}
        assert logs == {"first/scheduler.log", "first/proxy.log", "second/worker.log"}
        for host in hosts:
            _secrets_are_kept(host)


def _lookup(secret: object) -> str:
    return "{{ lookup('kgym_secret', '" + f"{secret}" + "') }}"


def _tls_is_verified(url: str, ca: Path, inventory: Path) -> None:
    """Only who has the certificate believes that this is the scheduler; the operator sees it."""
    with Client(url, OWNER) as client, pytest.raises(InfrastructureError, match="certificate"):
        client.workers()
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https:", "http:"), trust_env=False).raise_for_status()
    der = ssl.PEM_cert_to_DER_cert(ca.read_text())
    done = subprocess.run(
        ["openssl", "x509", "-inform", "der", "-noout", "-fingerprint", "-sha256"],
        input=der,
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.decode().strip() in inventory.with_name("ansible.log").read_text()


def _a_job_is_followed(client: Client) -> None:
    """Claims, logs, results and events come through the proxy, as they happen."""
    began = time.monotonic()
    source = TarballSource(url="/srv/linux.tar", sha256="0" * 64)  # no worker may read this
    build = BuildSpec(source=source, config=KernelConfig(base="tinyconfig"))
    done = client.wait(client.submit(JobRequest(steps=[build])).id)
    assert done.state is State.FAILED
    assert done.steps[0].attempt == 1
    assert time.monotonic() - began < 60


def _metrics_can_be_scraped(host: SshHost, url: str) -> None:
    """What Prometheus is told is so: a path, and a file with a token that may read it."""
    settings = yaml.safe_load((host.srv / "kgym" / "prometheus.yml").read_text())
    (scraped,) = settings["scrape_configs"]
    name = scraped["authorization"]["credentials_file"].removeprefix("/srv/")
    headers = {"Authorization": f"Bearer {(host.srv / name).read_text().strip()}"}
    path = f"{url}{scraped['metrics_path']}"
    assert "kgym_" in httpx.get(path, headers=headers).raise_for_status().text
    assert httpx.get(path).status_code == 401  # nobody who comes by the proxy is of this machine


def _secrets_are_kept(host: SshHost) -> None:
    """Nobody else of the host can read a secret, and none stands among a program's words."""
    root = host.srv / "kgym"
    holding = list(root.glob("*/environment"))
    holding += [path for path in root.glob("*token") if path.is_file()]
    holding += list(root.glob("proxy/*.key"))
    assert holding
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding)
    assert "KGYM_MIRRORS=/srv/no such folder\n" in next(root.glob("*/environment")).read_text()
    assert OWNER not in "".join(path.read_text() for path in root.glob("*/run"))


def _workers(client: Client) -> list[str]:
    """The live workers, once there is one."""
    until(lambda: bool(_live(client)))
    return _live(client)


def _live(client: Client) -> list[str]:
    return [worker.id for worker in client.workers() if worker.state == "live"]
