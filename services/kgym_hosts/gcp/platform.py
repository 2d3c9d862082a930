"""A deployment as a whole: it is brought up, looked at, and taken down with nothing left."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kgym.errors import InfrastructureError
from kgym_hosts.deployment import Deployment
from kgym_hosts.gcp.connection import Cloud
from kgym_hosts.gcp.instances import SCHEDULER, CloudHost, Instances
from kgym_hosts.gcp.resources import Bucket, resources


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a deployment, and what became of it."""

    kind: str
    name: str
    done: Literal["made", "there", "removed", "absent", "kept", "left"]


class CloudPlatform:
    """The parts of one deployment. Each method can be repeated: it goes on where it was."""

    def __init__(
        self, cloud: Cloud, deployment: Deployment, ssh_key: str = "", server: str | None = None
    ) -> None:
        """Keep all this, as of `Instances`."""
        self._cloud = cloud
        self._deployment = deployment
        self.instances = Instances(cloud, deployment, ssh_key, server)
        self._resources = resources(cloud, deployment)

    def bring_up(self, told: Callable[[Part], None] = lambda _: None) -> list[CloudHost]:
        """Make what is missing, up to the least number of hosts of each pool; return the hosts."""
        for one in self._resources:
            there = one.found()
            if not there:
                one.make()
            if isinstance(one, Bucket):
                one.allow()
            told(Part(one.kind, one.name, "there" if there else "made"))
        hosts = self.instances.all()
        least = {SCHEDULER: 1} | {name: one.least for name, one in self._deployment.pools.items()}
        for pool, wanted in least.items():
            there_are = [host for host in hosts if host.pool == pool]
            for host in there_are:
                told(Part("host", host.name, "there"))
            if (missing := wanted - len(there_are)) > 0:
                for name in self.instances.make(pool, missing, there_are):
                    told(Part("host", name, "made"))
        return self.instances.all()

    def take_down(self, told: Callable[[Part], None] = lambda _: None) -> None:
        """Remove all that has the deployment's mark, and look whether anything is left.

        Raises InfrastructureError `cloud_left` with what is left.
        """
        hosts = self.instances.all()
        self.instances.remove(hosts)
        for host in hosts:
            told(Part("host", host.name, "removed"))
        disks = self.instances.disks()
        self.instances.remove_disks(disks)
        for _, name in disks:
            told(Part("disk", name, "removed"))
        for one in reversed(self._resources):
            if self._is_kept(one.kind):
                told(Part(one.kind, one.name, "kept"))
                continue
            there = one.found()
            if there:
                one.remove()
            told(Part(one.kind, one.name, "removed" if there else "absent"))
        if left := self.left():
            named = ", ".join(f"{one.kind} {one.name}" for one in left)
            raise InfrastructureError(
                "cloud_left", f"these are still there: {named}; the same command goes on"
            )

    def left(self) -> list[Part]:
        """Return what of the deployment is there, by asking for all of it anew."""
        found = [Part("host", host.name, "left") for host in self.instances.all()]
        found += [Part("disk", name, "left") for _, name in self.instances.disks()]
        return found + [
            Part(one.kind, one.name, "left")
            for one in self._resources
            if not self._is_kept(one.kind) and one.found()
        ]

    def _is_kept(self, kind: str) -> bool:
        return kind == "bucket" and self._deployment.keep_bucket
