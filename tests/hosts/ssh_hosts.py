"""Hosts for tests: network namespaces of their own, with an SSH server, a name and /srv.

this machine --- switch (a namespace with a bridge) --- host, host, ...
"""

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgym_cli.platforms.servers import Program


@dataclass(frozen=True)
class SshHost:
    """A host that ssh reaches."""

    name: str
    address: str
    srv: Path
    """Its /srv, seen from outside."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def ssh_hosts(folder: Path, *names: str) -> Iterator[tuple[list[SshHost], Path]]:
    """Yield hosts on one bridge, and the private key with which root logs in."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dropbear", "ip", "unshare", "ssh"))):
        pytest.skip("hosts of their own need root, dropbear-bin, iproute2 and openssh-client")
    tag = uuid.uuid4().hex[:6]
    network = f"10.214.{int(tag[:2], 16)}"  # of its own: others may be under way
    key = folder / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=20
    )
    programs: list[Program] = []
    spaces: list[str] = []
    switch, uplink = f"ks{tag}", f"ku{tag}"
    try:
        # The bridge has a namespace of its own: a machine on which Docker has run filters what its
        # bridges forward, whatever the single bridge is told (bridge-nf-call-iptables).
        try:
            ip("netns", "add", switch)
            spaces.append(switch)
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no bridge can be made here: {error.stderr.decode()}")
        ip("link", "add", uplink, "type", "veth", "peer", "name", "uplink", "netns", switch)
        ip("addr", "add", f"{network}.1/24", "dev", uplink)
        ip("link", "set", uplink, "up")
        ip("-n", switch, "link", "set", "uplink", "master", "bridge", "up")
        ip("-n", switch, "link", "set", "bridge", "up")
        hosts = []
        for number, name in enumerate(names):
            host = SshHost(name, f"{network}.{number + 10}", folder / name / "srv")
            space, port = f"kn{tag}{number}", f"port{number}"
            ip("netns", "add", space)
            spaces.append(space)
            ip(*f"-n {switch} link add {port} type veth peer name wan netns {space}".split())
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{host.address}/24", "dev", "wan")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "wan", "up")
            programs.append(_server(folder, space, host, key))
            hosts.append(host)
        for host in hosts:
            _wait_for(host)
        yield hosts, key
    finally:
        for program in programs:
            program.stop()
        for space in spaces:  # links go with the namespace of either end
            ip("netns", "del", space)


def _wait_for(host: SshHost) -> None:
    ends = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host.address, 22), 5).close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
        else:
            return


def _server(folder: Path, space: str, host: SshHost, key: Path) -> Program:
    home = host.srv / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    users = folder / host.name / "passwd"
    users.write_text("root:x:0:0:root:/srv/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    authorized = home / ".ssh" / "authorized_keys"
    authorized.write_text(key.with_name("key.pub").read_text())
    authorized.chmod(0o600)
    home.chmod(0o700)
    script = (
        'mount --bind "$1" /etc/passwd && mount --bind "$2" /srv && hostname "$3" && '
        "exec dropbear -F -E -s -r /srv/home/host_key -p 22"
    )
    # When the first process is killed, the kernel ends all that runs on the host.
    words = [
        *("ip", "netns", "exec", space, "unshare", "--mount", "--uts", "--pid", "--fork"),
        *("--kill-child", "--mount-proc", "sh", "-c", script, "sh", users, host.srv, host.name),
    ]
    subprocess.run(
        ["dropbearkey", "-t", "ed25519", "-f", home / "host_key"],
        check=True,
        capture_output=True,
        timeout=20,
    )
    program = Program(host.name, words, folder / f"{host.name}.log")
    program.spawn()
    return program


def inventory(file: Path, hosts: list[SshHost], key: Path, **more: object) -> Path:
    """Write an inventory: the first host is the scheduler's, the others are workers."""
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"

    def of(some: list[SshHost]) -> dict[str, dict[str, str]]:
        return {host.name: {"ansible_host": host.address} for host in some}

    variables = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": options,
        "ansible_ssh_transfer_method": "piped",
        "ansible_python_interpreter": "/usr/bin/python3",
        **more,
    }
    groups = {"scheduler": {"hosts": of(hosts[:1])}, "workers": {"hosts": of(hosts[1:])}}
    file.write_text(json.dumps({"all": {"vars": variables, "children": groups}}))
    return file
