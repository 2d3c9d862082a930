"""What a deployment is made of besides its hosts, each found, made and removed by its name.

Only what is marked as the deployment's own is ever changed or removed: by its labels, or, where the
cloud knows no labels (networks, firewalls, routers, service accounts), by its description.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from google.api_core import exceptions

from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_hosts.deployment import Deployment
from kgym_hosts.gcp.connection import CALL_SECONDS, Cloud

LABEL = "kgym-deployment"
POOL_LABEL = "kgym-pool"
HTTPS = "443"
_AT_ONCE = 32


class Resource(Protocol):
    """One thing of a deployment."""

    @property
    def kind(self) -> str:
        """What it is, in a word or two."""
        ...

    @property
    def name(self) -> str:
        """What the cloud calls it."""
        ...

    def found(self) -> bool:
        """Return whether it is there; raise Conflict `cloud_foreign` if it is another's."""
        ...

    def make(self) -> None:
        """Make it. That it is there already is no error."""
        ...

    def remove(self) -> None:
        """Remove it. That it is not there is no error."""
        ...


def base_name(deployment: Deployment) -> str:
    """Return the name that all others begin with."""
    return f"kgym-{deployment.name}"


def mark(deployment: Deployment) -> str:
    """Return the description by which things without labels are known."""
    return f"kgym-deployment={deployment.name}"


def labels(deployment: Deployment) -> dict[str, str]:
    """Return the labels of all that has labels."""
    return {LABEL: deployment.name}


def account_email(deployment: Deployment, role: str) -> str:
    """Return the service account of the `scheduler`, or of `worker`s."""
    name = f"{base_name(deployment)}-{role}"
    return f"{name[:30].rstrip('-')}@{deployment.project}.iam.gserviceaccount.com"


def _foreign(kind: str, name: str) -> Conflict:
    return Conflict(
        "cloud_foreign",
        f"there is a {kind} {name} that is not of this deployment: give the deployment another "
        "name, or remove it yourself",
    )


@dataclass(frozen=True)
class ComputeResource:
    """A network, firewall or the like, as the compute library knows it."""

    cloud: Cloud
    deployment: Deployment
    kind: str
    """In the library's words, such as `subnetwork`."""
    name: str
    scope: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def _client(self) -> Any:
        plural = {"address": "Addresses"}.get(self.kind, f"{self.kind.capitalize()}s")
        return self.cloud.client(plural)

    @property
    def _named(self) -> dict[str, str]:
        return {"project": self.cloud.project, **self.scope, self.kind: self.name}

    def get(self) -> Any:
        """Return it, or None."""
        what = f"looking for the {self.kind} {self.name}"
        client, named = self._client, self._named
        try:
            return self.cloud.call(
                lambda: client.get(request=named, retry=None, timeout=CALL_SECONDS), what
            )
        except exceptions.NotFound:
            return None

    def found(self) -> bool:
        """Return whether it is there; raise Conflict `cloud_foreign` if it is another's."""
        one = self.get()
        if one is not None and one.description != mark(self.deployment):
            raise _foreign(self.kind, self.name)
        return one is not None

    def make(self) -> None:
        """Make it."""
        body = {"name": self.name, "description": mark(self.deployment), **self.body}
        request = {"project": self.cloud.project, **self.scope, f"{self.kind}_resource": body}
        client = self._client

        def begin(request_id: str) -> Any:
            return client.insert_unary(
                request={**request, "request_id": request_id}, retry=None, timeout=CALL_SECONDS
            )

        try:
            self.cloud.done(begin, self.scope, f"making the {self.kind} {self.name}")
        except exceptions.Conflict:
            if not self.found():  # it was there, and goes
                raise InfrastructureError(
                    "cloud_refused", f"the {self.kind} {self.name} is being removed: try again"
                ) from None

    def remove(self) -> None:
        """Remove it."""
        client, named = self._client, self._named

        def begin(request_id: str) -> Any:
            return client.delete_unary(
                request={**named, "request_id": request_id}, retry=None, timeout=CALL_SECONDS
            )

        try:
            self.cloud.done(begin, self.scope, f"removing the {self.kind} {self.name}")
        except exceptions.NotFound:
            return


@dataclass(frozen=True)
class ServiceAccount:
    """Who a host is; it may use the bucket, and nothing else."""

    cloud: Cloud
    deployment: Deployment
    role: str
    kind: str = "service account"

    @property
    def name(self) -> str:
        """Its address."""
        return account_email(self.deployment, self.role)

    @property
    def _path(self) -> str:
        return f"/v1/projects/{self.cloud.project}/serviceAccounts"

    def found(self) -> bool:
        """Return whether it is there; raise Conflict `cloud_foreign` if it is another's."""
        try:
            one = self.cloud.call(
                lambda: self.cloud.rest("GET", "iam", f"{self._path}/{self.name}"),
                f"looking for the service account {self.name}",
            )
        except exceptions.NotFound:
            return False
        if one.get("description") != mark(self.deployment):
            raise _foreign(self.kind, self.name)
        return True

    def make(self) -> None:
        """Make it."""
        account = {"displayName": f"kGymSuite {self.role}", "description": mark(self.deployment)}
        body = {"accountId": self.name.partition("@")[0], "serviceAccount": account}
        try:
            self.cloud.call(
                lambda: self.cloud.rest("POST", "iam", self._path, body),
                f"making the service account {self.name}",
            )
        except exceptions.Conflict:
            self.found()

    def remove(self) -> None:
        """Remove it."""
        try:
            self.cloud.call(
                lambda: self.cloud.rest("DELETE", "iam", f"{self._path}/{self.name}"),
                f"removing the service account {self.name}",
            )
        except exceptions.NotFound:
            return


@dataclass(frozen=True)
class Bucket:
    """Artifacts, and who may use them."""

    cloud: Cloud
    deployment: Deployment
    kind: str = "bucket"

    @property
    def name(self) -> str:
        """Its name, which is one of the whole world's."""
        return self.deployment.bucket

    def _rest(self, method: str, path: str, body: Any = None, **params: str) -> dict[str, Any]:
        return self.cloud.call(
            lambda: self.cloud.rest(method, "storage", f"/storage/v1/b{path}", body, **params),
            f"the bucket {self.name}",
        )

    def found(self) -> bool:
        """Return whether it is there with its rights; raise Conflict `cloud_foreign`."""
        try:
            one = self._rest("GET", f"/{self.name}")
        except exceptions.NotFound:
            return False
        if one.get("labels", {}).get(LABEL) != self.deployment.name:
            raise _foreign(self.kind, self.name)
        return True

    def make(self) -> None:
        """Make it: private, without soft delete or versions."""
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
            self.found()

    def allow(self) -> None:
        """Let the hosts use its objects; new service accounts may take a while to be known."""
        role = "roles/storage.objectUser"
        wanted = {f"serviceAccount:{account_email(self.deployment, r)}" for r in ROLES}
        policy = self._rest("GET", f"/{self.name}/iam")
        bindings = policy.setdefault("bindings", [])
        own = next((one for one in bindings if one["role"] == role), None)
        if own is None:
            bindings.append(own := {"role": role, "members": []})
        if not wanted <= set(own["members"]):
            own["members"] = sorted({*own["members"], *wanted})
            self._rest("PUT", f"/{self.name}/iam", policy)

    def remove(self) -> None:
        """Remove it with all objects; leave both if the deployment says so."""
        try:
            while names := self._names():
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    list(threads.map(self._remove_object, names))
            self._rest("DELETE", f"/{self.name}")
        except exceptions.NotFound:
            return
        except exceptions.Conflict as error:
            raise InfrastructureError(
                "cloud_refused", f"the bucket {self.name}: somebody still writes to it: {error}"
            ) from error

    def _names(self) -> list[str]:
        page = self._rest("GET", f"/{self.name}/o", fields="items(name)", maxResults="1000")
        return [one["name"] for one in page.get("items", [])]

    def _remove_object(self, name: str) -> None:
        try:
            self._rest("DELETE", f"/{self.name}/o/{quote(name, safe='')}")
        except exceptions.NotFound:
            return


@dataclass(frozen=True)
class SecretAccess:
    """That workers may read the secret with their token; the secret itself is the operator's."""

    cloud: Cloud
    deployment: Deployment
    name: str
    """The secret's."""
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
        """Return the secret's policy, and in it those that may read the secret."""
        policy = self._rest("GET", "getIamPolicy")
        bindings = policy.setdefault("bindings", [])
        own = next((one for one in bindings if one["role"] == _READS_SECRET), None)
        if own is None:
            bindings.append(own := {"role": _READS_SECRET, "members": []})
        members: list[str] = own["members"]
        return policy, members

    def found(self) -> bool:
        """Return whether workers may read it."""
        try:
            return self._member in self._policy()[1]
        except exceptions.NotFound:
            return False

    def make(self) -> None:
        """Let them; raise UserError `cloud_no_secret` if there is no such secret."""
        try:
            policy, members = self._policy()
        except exceptions.NotFound:
            raise UserError(
                "cloud_no_secret", f"the project has no secret {self.name}: docs/google-cloud.md"
            ) from None
        members.append(self._member)
        self._rest("POST", "setIamPolicy", {"policy": policy})

    def remove(self) -> None:
        """Let them no more."""
        try:
            policy, members = self._policy()
        except exceptions.NotFound:
            return
        members.remove(self._member)
        policy["bindings"] = [one for one in policy["bindings"] if one["members"]]
        self._rest("POST", "setIamPolicy", {"policy": policy})


_READS_SECRET = "roles/secretmanager.secretAccessor"  # noqa: S105 - a role's name
ROLES = ("scheduler", "worker")


def resources(cloud: Cloud, deployment: Deployment) -> list[Resource]:
    """Return all but hosts, in the order in which they are made; they go in the reverse one."""
    name, region = base_name(deployment), {"region": deployment.region}
    network = f"projects/{cloud.project}/global/networks/{name}"

    def compute(kind: str, named: str, scope: Mapping[str, str], **body: Any) -> ComputeResource:
        return ComputeResource(cloud, deployment, kind, named, scope, body)

    def firewall(named: str, ports: list[str], **body: Any) -> ComputeResource:
        allowed = [{"I_p_protocol": "tcp", "ports": ports}]
        return compute("firewall", named, {}, network=network, allowed=allowed, **body)

    clients = [str(one) for one in deployment.clients]
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
        # Workers have no address outside: sources and packages come to them by this.
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
        firewall(f"{name}-clients", ["22", HTTPS], source_ranges=clients, target_tags=at_scheduler),
        firewall(f"{name}-workers", [HTTPS], source_tags=[name], target_tags=at_scheduler),
        firewall(f"{name}-ssh", ["22"], source_tags=at_scheduler, target_tags=[name]),
        compute("address", name, region, labels=labels(deployment)),
        *(ServiceAccount(cloud, deployment, role) for role in ROLES),
    ]
    if deployment.secret is not None:
        made.append(SecretAccess(cloud, deployment, deployment.secret))
    return [*made, Bucket(cloud, deployment)]
