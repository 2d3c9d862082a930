"""The HTTP server: calls of Compute Engine, IAM and Secret Manager, beside those of storage.

`/metadata/HOST` is what a host sees as its metadata server.

with CloudProject(folder) as cloud:
    ...  # Cloud("my-project", cloud.url)
"""

import base64
import os
import re
from pathlib import Path
from typing import Any

from tests.google.cloud_project.collections import Collections, Machines
from tests.google.cloud_storage.buckets import Refusal
from tests.google.cloud_storage.exchange import Query
from tests.google.cloud_storage.routes import Routes
from tests.google.cloud_storage.server import CloudStorage


class ProjectRoutes(Routes):
    """Answers requests about the project; those about objects go to the storage's routes."""

    @property
    def project(self) -> "CloudProject":
        """What the server knows."""
        assert isinstance(self.cloud, CloudProject)
        return self.cloud

    # --- Compute Engine ----------------------------------------------------------------------

    def _make(self, match: "re.Match[str]", query: Query) -> None:
        place, collection = _place(match["place"]), match["collection"]
        request = query.get("requestId", "")
        made = self.project.compute.insert(collection, place, self.json(), request)
        self.send_json(made)

    def _look(self, match: "re.Match[str]", query: Query) -> None:
        place = _place(match["place"])
        if match["collection"] == "operations":
            self.send_json(self.project.compute.operation(match["name"]))
            return
        self.send_json(self.project.compute.get(match["collection"], place, match["name"]))

    def _delete(self, match: "re.Match[str]", query: Query) -> None:
        place, request = _place(match["place"]), query.get("requestId", "")
        done = self.project.compute.delete(match["collection"], place, match["name"], request)
        self.send_json(done)

    def _guest_attributes(self, match: "re.Match[str]", query: Query) -> None:
        self.project.compute.get("instances", _place(match["place"]), match["name"])
        path = query["queryPath"]
        value = self.project.guest_attributes.get((match["name"], path))
        if value is None:
            raise Refusal(404, "notFound", "The guest attributes were not found")
        namespace, _, key = path.partition("/")
        items = [{"namespace": namespace, "key": key, "value": value}]
        self.send_json({"queryPath": path, "queryValue": {"items": items}})

    def _aggregated(self, match: "re.Match[str]", query: Query) -> None:
        """List a collection in all zones, page by page."""
        collection = match["collection"]
        label = re.fullmatch(r"labels\.([\w-]+)=([\w-]+)", query.get("filter", ""))
        if label is None:
            raise Refusal(400, "invalid", "Invalid value for field 'filter'")
        things = [
            thing
            for thing in self.project.compute.all(collection)
            if thing.get("labels", {}).get(label[1]) == label[2]
        ]
        first, most = int(query.get("pageToken", "0")), int(query.get("maxResults", "500"))
        most = min(most, self.project.page)
        places: dict[str, dict[str, Any]] = {}
        for thing in things[first : first + most]:
            places.setdefault(thing["zone"], {collection: []})[collection].append(thing)
        answer: dict[str, Any] = {"items": places}
        if first + most < len(things):
            answer["nextPageToken"] = str(first + most)
        self.send_json(answer)

    # --- what hosts see ------------------------------------------------------------------------

    def _metadata(self, match: "re.Match[str]", query: Query) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            raise Refusal(403, "forbidden", "Missing Metadata-Flavor:Google header.")
        instance, what = self.project.compute.instance(match["name"]), match["what"]
        if what == "service-accounts/default/token":
            token = f"of-{instance['name']}"
            self.send_json({"access_token": token, "expires_in": 3599})
            return
        known = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
        shown = {f"attributes/{key}": value for key, value in known.items()}
        shown["name"] = instance["name"]
        if what not in shown:
            raise Refusal(404, "notFound", "Not Found")
        self.send(200, {"Content-Type": "application/text"}, shown[what].encode())

    def _set_guest_attribute(self, match: "re.Match[str]", _: Query) -> None:
        name = self.project.compute.instance(match["name"])["name"]
        self.project.guest_attributes[name, match["path"]] = self.body(1 << 16).decode()
        self.send(200, {})

    def _emulated(self, _: "re.Match[str]", query: Query) -> None:
        """Tell what no cloud tells: the server's process, all that is there, hosts' processes."""
        machines = self.project.machines
        processes = machines.running if machines is not None else {}
        self.send_json({"pid": os.getpid(), "left": self.project.left, "processes": processes})

    # --- secrets -------------------------------------------------------------------------------

    def _secret_policy(self, match: "re.Match[str]", query: Query) -> None:
        name = match["secret"]
        if name not in self.project.secrets:
            raise Refusal(404, "notFound", f"Secret [{name}] not found")
        if self.command == "POST":
            self.project.secret_policies[name] = self.json()["policy"]
        self.send_json(self.project.secret_policies.get(name, {}))

    def _read_secret(self, match: "re.Match[str]", query: Query) -> None:
        """Give a secret to a host whose account may have it, by its metadata's token; or to you."""
        if token := self.headers.get("Authorization"):
            instance = self.project.compute.instance(token.removeprefix("Bearer of-"))
            wanted = f"serviceAccount:{instance['serviceAccounts'][0]['email']}"
            bindings = self.project.secret_policies.get(match["secret"], {}).get("bindings", [])
            if not any(wanted in binding["members"] for binding in bindings):
                raise Refusal(403, "forbidden", f"{wanted} may not read this secret")
        if match["secret"] not in self.project.secrets:
            raise Refusal(404, "notFound", f"Secret [{match['secret']}] not found")
        data = base64.b64encode(self.project.secrets[match["secret"]].encode()).decode()
        self.send_json({"name": match["secret"], "payload": {"data": data}})

    # --- service accounts, rights on buckets ---------------------------------------------------

    def _create_account(self, match: "re.Match[str]", query: Query) -> None:
        body = self.json()
        email = f"{body['accountId']}@{match['project']}.iam.gserviceaccount.com"
        if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", str(body["accountId"])):
            raise Refusal(400, "invalid", f"Invalid account id {body['accountId']}")
        if email in self.project.service_accounts:
            raise Refusal(409, "alreadyExists", f"Service account {email} already exists")
        self.project.service_accounts[email] = {**body.get("serviceAccount", {}), "email": email}
        self.send_json(self.project.service_accounts[email])

    def _account(self, match: "re.Match[str]", query: Query) -> None:
        try:
            account = self.project.service_accounts[match["email"]]
        except KeyError:
            raise Refusal(404, "notFound", "Unknown service account") from None
        if self.command == "DELETE":
            del self.project.service_accounts[match["email"]]
        self.send_json(account)

    def _create_bucket_of_project(self, _: "re.Match[str]", query: Query) -> None:
        body = self.json()
        name = str(body.get("name"))
        self.cloud.buckets.create(name)
        self.project.bucket_settings[name] = body
        self.send_json({**body, **self.cloud.buckets.described(name)})

    def _show_bucket_of_project(self, match: "re.Match[str]", query: Query) -> None:
        name = match["bucket"]
        described = self.cloud.buckets.described(name)
        self.send_json({**self.project.bucket_settings.get(name, {}), **described})

    def _policy(self, match: "re.Match[str]", query: Query) -> None:
        name = match["bucket"]
        self.cloud.buckets.described(name)
        if self.command == "PUT":
            policy = self.json()
            for binding in policy.get("bindings", []):
                for member in binding["members"]:
                    if member.partition(":")[2] not in self.project.service_accounts:
                        raise Refusal(400, "invalid", f"Service account {member} does not exist.")
            self.project.policies[name] = policy
        self.send_json(self.project.policies.get(name, {"bindings": []}))


class CloudProject(CloudStorage):
    """The server, in threads of this process, while the context lasts."""

    routes = ProjectRoutes

    def __init__(
        self, folder: Path, port: int = 0, delay: float = 0.0, machines: Machines | None = None
    ) -> None:
        super().__init__(folder, port, delay)
        self.machines = machines
        self.compute = Collections(machines)
        self.service_accounts: dict[str, dict[str, Any]] = {}
        self.bucket_settings: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, str] = {}
        self.secret_policies: dict[str, dict[str, Any]] = {}
        # By host and path: what hosts have written.
        self.guest_attributes: dict[tuple[str, str], str] = {}
        # Most things of one page.
        self.page = 500

    @property
    def left(self) -> list[str]:
        """Return all that is there: things, service accounts, buckets."""
        buckets = [f"bucket/{name}" for name in self.buckets.names]
        return [*self.compute.names, *self.service_accounts, *buckets]


def _place(path: str) -> str:
    return path.rpartition("/")[2]


_COMPUTE = r"/compute/v1/projects/[^/]+"
_IN_PLACE = rf"{_COMPUTE}/(?P<place>global|regions/[^/]+|zones/[^/]+)/(?P<collection>\w+)"
_OF_HOST = r"/metadata/(?P<name>[^/]+)/computeMetadata/v1/instance"
_OF_SECRET = r"/v1/projects/[^/]+/secrets/(?P<secret>[^/:]+)"
_ACCOUNTS = r"/v1/projects/(?P<project>[^/]+)/serviceAccounts"
ProjectRoutes.table = (
    ("POST", _IN_PLACE, ProjectRoutes._make),
    ("GET", rf"{_IN_PLACE}/(?P<name>[^/]+)", ProjectRoutes._look),
    ("DELETE", rf"{_IN_PLACE}/(?P<name>[^/]+)", ProjectRoutes._delete),
    ("GET", rf"{_IN_PLACE}/(?P<name>[^/]+)/getGuestAttributes", ProjectRoutes._guest_attributes),
    ("GET", rf"{_COMPUTE}/aggregated/(?P<collection>\w+)", ProjectRoutes._aggregated),
    ("GET", r"/emulated", ProjectRoutes._emulated),
    ("GET", rf"{_OF_HOST}/(?P<what>.+)", ProjectRoutes._metadata),
    ("PUT", rf"{_OF_HOST}/guest-attributes/(?P<path>.+)", ProjectRoutes._set_guest_attribute),
    ("GET", rf"{_OF_SECRET}:getIamPolicy", ProjectRoutes._secret_policy),
    ("POST", rf"{_OF_SECRET}:setIamPolicy", ProjectRoutes._secret_policy),
    ("GET", rf"{_OF_SECRET}/versions/latest:access", ProjectRoutes._read_secret),
    ("POST", _ACCOUNTS, ProjectRoutes._create_account),
    ("GET", rf"{_ACCOUNTS}/(?P<email>[^/]+)", ProjectRoutes._account),
    ("DELETE", rf"{_ACCOUNTS}/(?P<email>[^/]+)", ProjectRoutes._account),
    ("POST", r"/storage/v1/b", ProjectRoutes._create_bucket_of_project),
    ("GET", r"/storage/v1/b/(?P<bucket>[^/]+)", ProjectRoutes._show_bucket_of_project),
    ("GET", r"/storage/v1/b/(?P<bucket>[^/]+)/iam", ProjectRoutes._policy),
    ("PUT", r"/storage/v1/b/(?P<bucket>[^/]+)/iam", ProjectRoutes._policy),
    *Routes.table,
)
