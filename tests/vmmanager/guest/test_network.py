"""How a guest takes its address, by the script that it runs, in network namespaces of this host."""

import subprocess
from pathlib import Path

import pytest

from kgym.host import proc
from kgym_vmmanager.guest.guest_image import network

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not proc.privileged(), reason="making network namespaces takes root"),
]

ALONE = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth1 up
{0} eth0 "{1}"
ip -o -4 addr show dev eth0; ip -o link show dev eth0; ip route
"""
# A lease as Google's networks give it: one address, the way to the gateway as a route, a small MTU.
LEASE = """
start 10.128.0.7
end 10.128.0.7
interface eth1
lease_file {folder}/leases
pidfile {folder}/pid
option subnet 255.255.255.255
option router 10.128.0.1
option mtu 1460
option staticroutes 10.128.0.1/32 0.0.0.0, 0.0.0.0/0 10.128.0.1
"""
LEASED = """
ip link add eth0 type veth peer name eth1
ip addr add 10.128.0.1/24 dev eth1
ip link set eth1 up
busybox udhcpd -f {folder}/udhcpd.conf & server=$!
timeout 20 {script} eth0 dhcp
kill $server
ip -o -4 addr show dev eth0; ip -o link show dev eth0; ip route
"""


def shown(script: str) -> str:
    """Run it in a network namespace of its own; return what it prints."""
    argv = ["unshare", "--net", "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def test_without_a_word_it_is_qemus_own_network() -> None:
    output = shown(ALONE.format(network(), ""))
    assert output.startswith("10.0.2.15/24,,1500\n")
    assert "inet 10.0.2.15/24" in output
    assert "default via" not in output


def test_an_address_that_was_told_is_taken_with_its_gateway() -> None:
    output = shown(ALONE.format(network(), "10.128.0.9/32,10.128.0.1,1460"))
    assert "inet 10.128.0.9/32" in output
    assert "mtu 1460" in output
    assert "default via 10.128.0.1" in output


def test_words_that_are_no_address_change_nothing() -> None:
    assert "inet" not in shown(ALONE.format(network(), "nonsense"))


def test_a_lease_with_the_way_to_its_gateway_is_taken(tmp_path: Path) -> None:
    (tmp_path / "leases").touch()
    (tmp_path / "udhcpd.conf").write_text(LEASE.format(folder=tmp_path))
    output = shown(LEASED.format(folder=tmp_path, script=network()))
    assert "10.128.0.7/32,10.128.0.1,1460\n" in output
    assert "inet 10.128.0.7/32" in output
    assert "mtu 1460" in output
    assert "default via 10.128.0.1" in output
