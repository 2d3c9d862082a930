"""Names and labels of VMs, from which anybody can tell whose they are, and until when. Pure.

A name follows from the lease of the attempt, so that a VM can be deleted though the answer to its
making was lost. Labels: `kgym` (the platform), `kgym-lease`, `kgym-boot` (one making of one VM:
what another worker made under the same name is never taken), and `kgym-deadline` (Unix time).
"""

import re
from collections.abc import Mapping
from uuid import UUID

DEADLINE = "kgym-deadline"
LEASE = "kgym-lease"
BOOT = "kgym-boot"
_LONGEST = 63


def instance_name(lease: UUID, name: str) -> str:
    """Return what the VM of an instance is called: letters, digits and hyphens."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"kgym-{lease.hex}-{words}"[:_LONGEST].rstrip("-")


def labels(owner: str, lease: UUID, boot: UUID, deadline: float) -> dict[str, str]:
    """Return the labels of a VM that is to be gone at the deadline, in Unix time."""
    return {
        "kgym": owner,
        LEASE: lease.hex,
        BOOT: boot.hex,
        DEADLINE: str(int(deadline)),
    }


def lease_of(found: Mapping[str, str]) -> UUID | None:
    """Return the lease under which something with these labels was made."""
    try:
        return UUID(hex=found.get(LEASE, ""))
    except ValueError:
        return None


def is_over(found: Mapping[str, str], now: float, grace: float) -> bool:
    """Return whether the deadline of a VM with these labels has passed, for hosts' clocks differ.

    One without a deadline that can be read was made by nobody who still knows of it.
    """
    try:
        return int(found.get(DEADLINE, "")) + grace < now
    except ValueError:
        return True
