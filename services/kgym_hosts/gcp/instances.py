"""The hosts of a deployment: instances with its label.

Hosts of a pool are numbered, and the number determines the first zone that is tried: two loops, or
a loop and an `up`, that make the same hosts at the same time make each of them once.
"""

import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from google.api_core import exceptions

from kgym.errors import Conflict, InfrastructureError
from kgym_hosts.deployment import Deployment, Machine, Pool
from kgym_hosts.gcp.connection import CALL_SECONDS, Cloud
from kgym_hosts.gcp.resources import LABEL, POOL_LABEL, account_email, base_name, labels

# The name of the scheduler's host within the deployment, and of its "pool".
SCHEDULER = "scheduler"
_AT_ONCE = 16
_STARTUP = Path(__file__).with_name("worker_host.sh")
_STOPPED = {"STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED"}


@dataclass(frozen=True, slots=True)
class CloudHost:
    """An instance as the cloud describes it."""

    name: str
    pool: str
    zone: str
    state: str
    """RUNNING, or another status of Compute Engine."""

    @property
    def stopped(self) -> bool:
        """Whether the machine is off, or shutting down."""
        return self.state in _STOPPED

    address: str
    """Address within the network."""
    external_address: str | None
    machine_type: str
    spot: bool
    created: datetime


class Instances:
    """The instances of one deployment."""

    def __init__(
        self, cloud: Cloud, deployment: Deployment, ssh_key: str = "", server: str | None = None
    ) -> None:
        """`ssh_key` is the public key of the user `kgym`; `server`, another scheduler's address."""
        self._cloud = cloud
        self._deployment = deployment
        self._ssh_key = ssh_key
        self._server = server or deployment.server

    def all(self) -> list[CloudHost]:
        """Return all hosts of the deployment, in all zones, ordered by name."""
        return sorted(map(_host, self._listed("Instances")), key=lambda host: host.name)

    def disks(self) -> list[tuple[str, str]]:
        """Return (zone, name) of the deployment's disks; a disk can outlive its host."""
        return [(_last(disk.zone), disk.name) for disk in self._listed("Disks")]

    def _listed(self, plural: str) -> list[Any]:
        """Return the library's objects of the deployment, in all zones."""
        client, wanted = self._cloud.client(plural), f"labels.{LABEL}={self._deployment.name}"
        request = {"project": self._cloud.project, "filter": wanted}

        def listed() -> list[Any]:
            pages = client.aggregated_list(request=request, retry=None, timeout=CALL_SECONDS)
            return [item for _, zone in pages for item in getattr(zone, plural.lower())]

        return self._cloud.call(listed, f"listing the {plural.lower()}")

    def make(self, pool: str, number: int, there: Iterable[CloudHost]) -> list[str]:
        """Make `number` hosts of a pool besides those in `there`; return the names of new hosts.

        Raises the last error if all failed: InfrastructureError `cloud_stockout`, `cloud_quota`.
        """
        base = f"{base_name(self._deployment)}-{pool}"
        taken = {host.name for host in there}
        # The lowest free numbers, so that a second loop chooses the same names and conflicts.
        free = (name for n in count(1) if (name := f"{base}-{n}") not in taken)
        names = [base] if pool == SCHEDULER else list(islice(free, number))
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            outcomes = list(threads.map(lambda name: self._try_zones(pool, name), names))
        errors = [error for error in outcomes if error is not None]
        if len(errors) == len(names):
            raise errors[-1]
        return [name for name, error in zip(names, outcomes, strict=True) if error is None]

    def _try_zones(self, pool: str, name: str) -> InfrastructureError | None:
        machine = self._machine(pool)
        zones = list(self._deployment.zones)
        if (fixed := self._deployment.scheduler.zone) and pool == SCHEDULER:
            zones = [fixed]
        # By the name, so that two processes make the same host in the same zone.
        first = zlib.crc32(name.encode()) % len(zones) if pool != SCHEDULER else 0
        error = None
        for zone in [*zones[first:], *zones[:first]]:
            try:
                self._make(pool, name, zone, machine)
            except InfrastructureError as failed:
                # Only capacity differs between zones: any other error would come again.
                if failed.reason not in {"cloud_stockout", "cloud_quota"}:
                    raise
                error = failed
            else:
                return None
        return error

    def _machine(self, pool: str) -> Machine:
        known: Mapping[str, Machine] = self._deployment.pools
        return self._deployment.scheduler if pool == SCHEDULER else known[pool]

    def _make(self, pool: str, name: str, zone: str, machine: Machine) -> None:
        body = self._body(pool, name, zone, machine)
        request = {"zone": zone, "instance_resource": body}
        what = f"making the host {name} in {zone}"
        try:
            self._cloud.done("Instances", "insert_unary", request, what)
        except exceptions.Conflict:  # just made by another process, or still being removed
            self._check_own(name, zone)

    def _check_own(self, name: str, zone: str) -> None:
        """Raise Conflict if the host is not the deployment's, InfrastructureError if it is gone."""
        named = {"zone": zone, "instance": name}
        instance = self._cloud.get("Instances", named, f"looking for the host {name}")
        if instance is None:
            message = f"the host {name} is being removed: try again"
            raise InfrastructureError("cloud_refused", message)
        if instance.labels.get(LABEL) != self._deployment.name:
            raise Conflict("cloud_foreign", f"the host {name} exists and is not of this deployment")

    def _body(self, pool: str, name: str, zone: str, machine: Machine) -> dict[str, Any]:
        deployment, project = self._deployment, self._cloud.project
        base, own = base_name(deployment), {**labels(deployment), POOL_LABEL: pool}
        role = SCHEDULER if pool == SCHEDULER else "worker"
        # The scope of a host's tokens. Hosts that read no secret get tokens for storage alone, even
        # if somebody grants their account more.
        reads_secret = role == "worker" and deployment.secret is not None
        scope = "cloud-platform" if reads_secret else "devstorage.read_write"
        interface: dict[str, Any] = {
            "subnetwork": f"projects/{project}/regions/{deployment.region}/subnetworks/{base}"
        }
        if pool == SCHEDULER:
            address = self._cloud.client("Addresses").get(
                request={"project": project, "region": deployment.region, "address": base},
                timeout=CALL_SECONDS,
            )
            interface["access_configs"] = [
                {"name": "outside", "type_": "ONE_TO_ONE_NAT", "nat_i_p": address.address}
            ]
        body: dict[str, Any] = {
            "name": name,
            "machine_type": f"zones/{zone}/machineTypes/{machine.machine_type}",
            "labels": own,
            "tags": {"items": [base, *([f"{base}-scheduler"] if pool == SCHEDULER else [])]},
            "network_interfaces": [interface],
            "service_accounts": [
                {
                    "email": account_email(deployment, role),
                    "scopes": [f"https://www.googleapis.com/auth/{scope}"],
                }
            ],
            "disks": [
                {
                    "boot": True,
                    "auto_delete": True,
                    "initialize_params": {
                        "source_image": deployment.image,
                        "disk_size_gb": machine.disk_gb,
                        "disk_type": f"zones/{zone}/diskTypes/{machine.disk_type}",
                        "labels": own,
                    },
                }
            ],
            "metadata": {
                "items": [
                    {"key": key, "value": value} for key, value in self._metadata(machine).items()
                ]
            },
        }
        if isinstance(machine, Pool) and machine.spot:
            body["scheduling"] = {
                "provisioning_model": "SPOT",
                # The loop makes a new host; a stopped one would still be billed for its disk.
                "instance_termination_action": "DELETE",
                "automatic_restart": False,
            }
        if isinstance(machine, Pool) and machine.nested:
            body["advanced_machine_features"] = {"enable_nested_virtualization": True}
        return body

    def _metadata(self, machine: Machine) -> dict[str, str]:
        """Return the host's metadata, with the startup script of a pool's hosts."""
        # The script, not the playbook, makes a host a worker: hosts that the loop adds, or that the
        # cloud restarts, need nobody to log in to them.
        deployment = self._deployment
        metadata = {
            # Only the deployment's own key may log in, not those of the whole project.
            "block-project-ssh-keys": "TRUE",
            "enable-oslogin": "FALSE",
            "enable-guest-attributes": "TRUE",
            "kgym-storage": deployment.storage,
        }
        if self._ssh_key:
            metadata["ssh-keys"] = f"kgym:{self._ssh_key}"
        if not isinstance(machine, Pool) or self._server is None:
            return metadata
        if deployment.secret is not None:
            metadata["kgym-secret"] = f"projects/{deployment.project}/secrets/{deployment.secret}"
        return metadata | {
            "startup-script": _STARTUP.read_text(),
            "kgym-server": self._server,
            "kgym-kinds": ",".join(machine.kinds),
            "kgym-slots": str(machine.slots),
            "kgym-program": deployment.program,
            "kgym-setup": deployment.setup,
        }

    def versions(self, hosts: Iterable[CloudHost]) -> dict[str, str]:
        """Return the version of kgym that each host reports.

        The host reports it as a guest attribute: a version noted at set-up could be outdated.
        """
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            versions = threads.map(lambda host: (host.name, self._version(host)), hosts)
            return {name: version for name, version in versions if version}

    def _version(self, host: CloudHost) -> str | None:
        named = {"zone": host.zone, "instance": host.name, "query_path": "kgym/version"}
        what = f"asking for the version of {host.name}"
        try:
            attributes = self._cloud.ask("Instances", "get_guest_attributes", named, what)
        except exceptions.NotFound:
            return None
        values = [str(item.value) for item in attributes.query_value.items]
        return values[0].split()[-1][:40] if values and values[0].split() else None

    def remove(self, hosts: list[CloudHost]) -> None:
        """Delete hosts with their disks; ignore those that are gone."""
        places = [(host.zone, host.name) for host in hosts]
        self._remove_all("Instances", "instance", places)

    def remove_disks(self, disks: list[tuple[str, str]]) -> None:
        """Delete disks without a host."""
        self._remove_all("Disks", "disk", disks)

    def _remove_all(self, plural: str, kind: str, places: list[tuple[str, str]]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(lambda place: self._remove(plural, kind, *place), places))

    def _remove(self, plural: str, kind: str, zone: str, name: str) -> None:
        self._cloud.delete(plural, {"zone": zone, kind: name}, f"removing the {kind} {name}")


def _host(instance: Any) -> CloudHost:
    interface = instance.network_interfaces[0] if instance.network_interfaces else None
    outside = interface.access_configs[0].nat_i_p if interface and interface.access_configs else ""
    return CloudHost(
        name=instance.name,
        pool=instance.labels.get(POOL_LABEL, ""),
        zone=_last(instance.zone),
        state=instance.status,
        address=interface.network_i_p if interface else "",
        external_address=outside or None,
        machine_type=_last(instance.machine_type),
        spot=instance.scheduling.provisioning_model == "SPOT",
        created=datetime.fromisoformat(instance.creation_timestamp),
    )


def _last(path: str) -> str:
    return str(path).rpartition("/")[2]
