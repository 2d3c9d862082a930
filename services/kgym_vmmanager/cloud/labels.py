"""Names and labels of VMs and images: whose they are, and until when. Pure.

Labels: `kgym` (the platform), `kgym-lease`, `kgym-boot` and `kgym-deadline` (Unix time). Names and
values keep to what the large clouds all accept: lower case, digits, hyphens, 63 characters.
"""

import re
from collections.abc import Mapping
from uuid import UUID

DEADLINE = "kgym-deadline"
LEASE = "kgym-lease"
# Identifies one creation of a VM. Two workers may create VMs of the same name, as an expired lease
# may still be worked on: each worker deletes only VMs that have its own value of this label.
BOOT = "kgym-boot"
_LONGEST = 63


def instance_name(lease: UUID, name: str) -> str:
    """Name an instance's VM after its attempt's lease: letters, digits and hyphens."""
    # Computed, not random: a VM can be deleted even if the answer to its creation was lost.
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"kgym-{lease.hex}-{words}"[:_LONGEST].rstrip("-")


def labels(owner: str, lease: UUID, boot: UUID, deadline: float) -> dict[str, str]:
    """Return the labels of a VM or image that may be deleted after `deadline` (Unix time)."""
    return {"kgym": owner, LEASE: lease.hex, BOOT: boot.hex, DEADLINE: str(int(deadline))}


def lease_of(labels: Mapping[str, str]) -> UUID | None:
    """Return the lease for which a resource was created; None if its label is not readable."""
    try:
        return UUID(hex=labels.get(LEASE, ""))
    except ValueError:
        return None


def is_over(labels: Mapping[str, str], now: float, grace: float) -> bool:
    """Return whether a resource's deadline passed more than `grace` seconds before `now`."""
    try:
        return int(labels.get(DEADLINE, "")) + grace < now
    except ValueError:
        # Every creator that is still alive sets a readable deadline.
        return True
