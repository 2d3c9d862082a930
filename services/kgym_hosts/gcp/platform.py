"""A deployment as a whole: bring it up, list its parts, take it down completely.

There is no file of states that could be lost or wrong: the cloud's own lists are the state. Parts
are found by their names and hosts by their label, so each command continues where one was killed.
"""

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
    """A part of a deployment, and what was done with it."""

    kind: str
    name: str
    done: Literal["made", "there", "removed", "absent", "kept", "left"]


class CloudPlatform:
    """The parts of one deployment. All methods are idempotent, and can be repeated after a kill."""

    def __init__(
        self, cloud: Cloud, deployment: Deployment, ssh_key: str = "", server: str | None = None
    ) -> None:
        """Arguments are those of `Instances`."""
        self._cloud = cloud
        self._deployment = deployment
        self.instances = Instances(cloud, deployment, ssh_key, server)
        self._resources = resources(cloud, deployment)

    def bring_up(self, report: Callable[[Part], None] = lambda _: None) -> list[CloudHost]:
        """Make missing parts, and hosts up to each pool's minimum; return all hosts."""
        for resource in self._resources:
            existed = resource.exists()
            if not existed:
                resource.make()
            if isinstance(resource, Bucket):
                resource.allow()
            report(Part(resource.kind, resource.name, "there" if existed else "made"))
        hosts = self.instances.all()
        least = {SCHEDULER: 1} | {name: pool.least for name, pool in self._deployment.pools.items()}
        for pool, wanted in least.items():
            existing = [host for host in hosts if host.pool == pool]
            for host in existing:
                report(Part("host", host.name, "there"))
            if (missing := wanted - len(existing)) > 0:
                for name in self.instances.make(pool, missing, existing):
                    report(Part("host", name, "made"))
        return self.instances.all()

    def take_down(self, report: Callable[[Part], None] = lambda _: None) -> None:
        """Remove everything with the deployment's mark, and check that nothing is left.

        Raises InfrastructureError `cloud_left` with the remaining parts.
        """
        hosts = self.instances.all()
        self.instances.remove(hosts)
        for host in hosts:
            report(Part("host", host.name, "removed"))
        disks = self.instances.disks()
        self.instances.remove_disks(disks)
        for _, name in disks:
            report(Part("disk", name, "removed"))
        # In reverse dependency order: the cloud refuses to remove what is still used.
        for resource in reversed(self._resources):
            if self._is_kept(resource.kind):
                report(Part(resource.kind, resource.name, "kept"))
                continue
            existed = resource.exists()
            if existed:
                resource.remove()
            report(Part(resource.kind, resource.name, "removed" if existed else "absent"))
        if left := self.left():
            named = ", ".join(f"{part.kind} {part.name}" for part in left)
            raise InfrastructureError(
                "cloud_left", f"not removed: {named}; run the same command again to continue"
            )

    def left(self) -> list[Part]:
        """Return the parts of the deployment that exist, by listing all of them again."""
        parts = [Part("host", host.name, "left") for host in self.instances.all()]
        parts += [Part("disk", name, "left") for _, name in self.instances.disks()]
        return parts + [
            Part(resource.kind, resource.name, "left")
            for resource in self._resources
            if not self._is_kept(resource.kind) and resource.exists()
        ]

    def _is_kept(self, kind: str) -> bool:
        return kind == "bucket" and self._deployment.keep_bucket
