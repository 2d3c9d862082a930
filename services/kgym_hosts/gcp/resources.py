"""The resources of a deployment besides its hosts, identified by name.

Only resources with the deployment's mark are ever changed or removed: a label, or a description
for kinds of resources that have no labels (networks, firewalls, routers, service accounts).
"""

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from google.api_core import exceptions

from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_hosts.deployment import Deployment
from kgym_hosts.gcp.connection import Cloud

LABEL = "kgym-deployment"
POOL_LABEL = "kgym-pool"
HTTPS = "443"
_AT_ONCE = 32


class Resource(Protocol):
    """One resource of a deployment."""

    @property
    def kind(self) -> str:
        """Its kind, in one or two words."""

    @property
    def name(self) -> str:
        """Its name in the cloud."""

    def exists(self) -> bool:
        """Return whether it exists; raise Conflict `cloud_foreign` without the mark."""

    def make(self) -> None:
        """Make it; do nothing if it exists."""

    def remove(self) -> None:
        """Remove it; do nothing if it does not exist."""


def base_name(deployment: Deployment) -> str:
    """Return the common prefix of all names."""
    return f"kgym-{deployment.name}"


def mark(deployment: Deployment) -> str:
    """Return the description that marks resources without labels."""
    return f"kgym-deployment={deployment.name}"


def labels(deployment: Deployment) -> dict[str, str]:
    """Return the labels that mark resources."""
    return {LABEL: deployment.name}


def account_email(deployment: Deployment, role: str) -> str:
    """Return the service account of the `scheduler`, or of `worker`s."""
    name = f"{base_name(deployment)}-{role}"
    return f"{name[:30].rstrip('-')}@{deployment.project}.iam.gserviceaccount.com"


def _foreign(kind: str, name: str) -> Conflict:
    return Conflict(
        "cloud_foreign",
        f"the {kind} {name} exists and is not of this deployment: give the deployment another "
        "name, or remove it yourself",
    )


@dataclass(frozen=True)
class ComputeResource:
    """A resource of Compute Engine: a network, firewall, address, router."""

    cloud: Cloud
    deployment: Deployment
    kind: str
    """The library's word, such as `subnetwork`."""
    name: str
    scope: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def _plural(self) -> str:
        return {"address": "Addresses"}.get(self.kind, f"{self.kind.capitalize()}s")

    @property
    def _named(self) -> dict[str, str]:
        return {**self.scope, self.kind: self.name}

    def get(self) -> Any:
        """Return the library's object; None if it does not exist."""
        what = f"looking for the {self.kind} {self.name}"
        return self.cloud.get(self._plural, self._named, what)

    def exists(self) -> bool:
        """Return whether it exists; raise Conflict `cloud_foreign` without the mark."""
        resource = self.get()
        if resource is not None and resource.description != mark(self.deployment):
            raise _foreign(self.kind, self.name)
        return resource is not None

    def make(self) -> None:
        """Make it."""
        body = {"name": self.name, "description": mark(self.deployment), **self.body}
        request = {**self.scope, f"{self.kind}_resource": body}
        what = f"making the {self.kind} {self.name}"
        try:
            self.cloud.done(self._plural, "insert_unary", request, what)
        except exceptions.Conflict:
            if not self.exists():  # an earlier one is still being removed
                raise InfrastructureError(
                    "cloud_refused", f"the {self.kind} {self.name} is being removed: try again"
                ) from None

    def remove(self) -> None:
        """Remove it."""
        self.cloud.delete(self._plural, self._named, f"removing the {self.kind} {self.name}")


@dataclass(frozen=True)
class ServiceAccount:
    """The identity of hosts."""

    # It gets a role on the bucket, and workers one on their secret; none on the project.

    cloud: Cloud
    deployment: Deployment
    role: str
    kind: str = "service account"

    @property
    def name(self) -> str:
        """Its email address."""
        return account_email(self.deployment, self.role)

    def _rest(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        accounts = f"/v1/projects/{self.cloud.project}/serviceAccounts"
        return self.cloud.call(
            lambda: self.cloud.rest(method, "iam", f"{accounts}{path}", body),
            f"the service account {self.name}",
        )

    def exists(self) -> bool:
        """Return whether it exists; raise Conflict `cloud_foreign` without the mark."""
        try:
            account = self._rest("GET", f"/{self.name}")
        except exceptions.NotFound:
            return False
        if account.get("description") != mark(self.deployment):
            raise _foreign(self.kind, self.name)
        return True

    def make(self) -> None:
        """Make it."""
        account = {"displayName": f"kGymSuite {self.role}", "description": mark(self.deployment)}
        body = {"accountId": self.name.partition("@")[0], "serviceAccount": account}
        try:
            self._rest("POST", "", body)
        except exceptions.Conflict:
            self.exists()

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(exceptions.NotFound):
            self._rest("DELETE", f"/{self.name}")


@dataclass(frozen=True)
class Bucket:
    """The bucket of artifacts, and the permission of hosts to use it."""

    cloud: Cloud
    deployment: Deployment
    kind: str = "bucket"

    @property
    def name(self) -> str:
        """Its name, which is unique in the whole cloud."""
        return self.deployment.bucket

    def _rest(self, method: str, path: str, body: Any = None, **params: str) -> dict[str, Any]:
        return self.cloud.call(
            lambda: self.cloud.rest(method, "storage", f"/storage/v1/b{path}", body, **params),
            f"the bucket {self.name}",
        )

    def exists(self) -> bool:
        """Return whether it exists; raise Conflict `cloud_foreign` without the mark."""
        try:
            bucket = self._rest("GET", f"/{self.name}")
        except exceptions.NotFound:
            return False
        if bucket.get("labels", {}).get(LABEL) != self.deployment.name:
            raise _foreign(self.kind, self.name)
        return True

    def make(self) -> None:
        """Make it: private, without soft delete or versions, whose storage would be billed."""
        body = {
            "name": self.name,
            "location": self.deployment.region,
            "labels": labels(self.deployment),
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
        }
        try:
            self._rest("POST", "", body, project=self.cloud.project)
        except exceptions.Conflict:
            self.exists()

    def allow(self) -> None:
        """Let the hosts use its objects."""
        role = "roles/storage.objectUser"
        wanted = {f"serviceAccount:{account_email(self.deployment, r)}" for r in ROLES}
        policy = self._rest("GET", f"/{self.name}/iam")
        bindings = policy.setdefault("bindings", [])
        own = next((binding for binding in bindings if binding["role"] == role), None)
        if own is None:
            bindings.append(own := {"role": role, "members": []})
        # Other members and bindings stay: an operator may have added them.
        if not wanted <= set(own["members"]):
            own["members"] = sorted({*own["members"], *wanted})
            self._rest("PUT", f"/{self.name}/iam", policy)

    def remove(self) -> None:
        """Remove it with all objects."""
        try:
            while names := self._names():
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    list(threads.map(self._remove_object, names))
            self._rest("DELETE", f"/{self.name}")
        except exceptions.NotFound:
            return
        except exceptions.Conflict as error:
            raise InfrastructureError(
                "cloud_refused", f"the bucket {self.name}: objects are still written to it: {error}"
            ) from error

    def _names(self) -> list[str]:
        page = self._rest("GET", f"/{self.name}/o", fields="items(name)", maxResults="1000")
        return [item["name"] for item in page.get("items", [])]

    def _remove_object(self, name: str) -> None:
        with contextlib.suppress(exceptions.NotFound):
            self._rest("DELETE", f"/{self.name}/o/{quote(name, safe='')}")


@dataclass(frozen=True)
class SecretAccess:
    """Workers' permission to read the secret that holds their token; the operator creates it."""

    cloud: Cloud
    deployment: Deployment
    name: str
    """The secret's name."""
    kind: str = "access to secret"

    @property
    def _member(self) -> str:
        return f"serviceAccount:{account_email(self.deployment, 'worker')}"

    def _rest(self, method: str, verb: str, body: Any = None) -> dict[str, Any]:
        path = f"/v1/projects/{self.cloud.project}/secrets/{self.name}:{verb}"
        return self.cloud.call(
            lambda: self.cloud.rest(method, "secretmanager", path, body), f"the secret {self.name}"
        )

    def _policy(self) -> tuple[dict[str, Any], list[str]]:
        """Return the secret's policy, and the list in it of members that may read the secret."""
        policy = self._rest("GET", "getIamPolicy")
        bindings = policy.setdefault("bindings", [])
        own = next((item for item in bindings if item["role"] == _READS_SECRET), None)
        if own is None:
            bindings.append(own := {"role": _READS_SECRET, "members": []})
        members: list[str] = own["members"]
        return policy, members

    def exists(self) -> bool:
        """Return whether workers may read the secret."""
        try:
            return self._member in self._policy()[1]
        except exceptions.NotFound:
            return False

    def make(self) -> None:
        """Grant the permission; raise UserError `cloud_no_secret` if the secret does not exist."""
        try:
            policy, members = self._policy()
        except exceptions.NotFound:
            raise UserError(
                "cloud_no_secret", f"the project has no secret {self.name}: docs/google-cloud.md"
            ) from None
        members.append(self._member)
        self._rest("POST", "setIamPolicy", {"policy": policy})

    def remove(self) -> None:
        """Revoke the permission."""
        try:
            policy, members = self._policy()
        except exceptions.NotFound:
            return
        members.remove(self._member)
        policy["bindings"] = [item for item in policy["bindings"] if item["members"]]
        self._rest("POST", "setIamPolicy", {"policy": policy})


_READS_SECRET = "roles/secretmanager.secretAccessor"  # noqa: S105 - a role's name
ROLES = ("scheduler", "worker")


def resources(cloud: Cloud, deployment: Deployment) -> list[Resource]:
    """Return all resources but hosts, in dependency order; they are removed in reverse."""
    name, region = base_name(deployment), {"region": deployment.region}
    network = f"projects/{cloud.project}/global/networks/{name}"

    def compute(kind: str, named: str, scope: Mapping[str, str], **body: Any) -> ComputeResource:
        return ComputeResource(cloud, deployment, kind, named, scope, body)

    def firewall(named: str, ports: list[str], **body: Any) -> ComputeResource:
        allowed = [{"I_p_protocol": "tcp", "ports": ports}]
        return compute("firewall", named, {}, network=network, allowed=allowed, **body)

    clients = [str(network) for network in deployment.clients]
    at_scheduler = [f"{name}-scheduler"]
    made: list[Resource] = [
        compute("network", name, {}, auto_create_subnetworks=False),
        compute(
            "subnetwork",
            name,
            region,
            network=network,
            ip_cidr_range=str(deployment.subnetwork),
            private_ip_google_access=True,
        ),
        # Workers have no external address: they fetch sources and packages through NAT.
        compute(
            "router",
            name,
            region,
            network=network,
            nats=[
                {
                    "name": name,
                    "nat_ip_allocate_option": "AUTO_ONLY",
                    "source_subnetwork_ip_ranges_to_nat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
                }
            ],
        ),
        # Clients reach the scheduler only; workers reach it by TLS; it reaches workers by SSH.
        firewall(f"{name}-clients", ["22", HTTPS], source_ranges=clients, target_tags=at_scheduler),
        firewall(f"{name}-workers", [HTTPS], source_tags=[name], target_tags=at_scheduler),
        firewall(f"{name}-ssh", ["22"], source_tags=at_scheduler, target_tags=[name]),
        compute("address", name, region, labels=labels(deployment)),
        *(ServiceAccount(cloud, deployment, role) for role in ROLES),
    ]
    if deployment.secret is not None:
        made.append(SecretAccess(cloud, deployment, deployment.secret))
    return [*made, Bucket(cloud, deployment)]
