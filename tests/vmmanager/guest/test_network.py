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

ALONE = Path(__file__).with_name("network_alone.sh").read_text()
# A lease as Google's networks give it: one address, the way to the gateway as a route, a small MTU.
LEASE = Path(__file__).with_name("network_lease.conf").read_text()
LEASED = Path(__file__).with_name("network_leased.sh").read_text()


def shown(script: str) -> str:
    """Run it in a network namespace of its own; return what it prints."""
    argv = ["unshare", "--net", "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


@pytest.mark.parametrize(
    ("address", "shows", "lacks"),
    [
        ("", ["10.0.2.15/24,,1500\n", "inet 10.0.2.15/24"], "default via"),  # QEMU's own
        (
            "10.128.0.9/32,10.128.0.1,1460",
            ["inet 10.128.0.9/32", "mtu 1460", "default via 10.128.0.1"],
            "10.0.2.15",
        ),
        ("nonsense", [], "inet"),
    ],
)
def test_addresses_of_command_lines(address: str, shows: list[str], lacks: str) -> None:
    output = shown(ALONE.format(network(), address))
    assert all(words in output for words in shows), output
    assert lacks not in output


def test_a_lease_with_the_way_to_its_gateway_is_taken(tmp_path: Path) -> None:
    (tmp_path / "leases").touch()
    (tmp_path / "udhcpd.conf").write_text(LEASE.format(folder=tmp_path))
    output = shown(LEASED.format(folder=tmp_path, script=network()))
    for words in ("10.128.0.7/32,10.128.0.1,1460\n", "inet 10.128.0.7/32", "mtu 1460"):
        assert words in output
    assert "default via 10.128.0.1" in output
