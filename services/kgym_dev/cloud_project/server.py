"""The HTTP server: Compute Engine's and IAM's calls of a deployment, beside those of storage.

with CloudProject(folder) as cloud:
    ...  # Cloud("my-project", cloud.url)
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kgym_dev.cloud_project.collections import Collections, Machines
from kgym_dev.cloud_storage.buckets import Refusal
from kgym_dev.cloud_storage.exchange import Query
from kgym_dev.cloud_storage.routes import Routes
from kgym_dev.cloud_storage.server import CloudStorage


class ProjectRoutes(Routes):
    """Answers requests about the project; those about objects go to the storage's routes."""

    def route(self) -> None:
        """Find the path, and do it."""
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        for method, pattern, route in _ROUTES:
            if method == self.command and (found := re.fullmatch(pattern, unquote(parts.path))):
                self.cloud.accounts.check(self.headers.get("Authorization"))
                route(self, found, query)
                return
        super().route()

    @property
    def project(self) -> "CloudProject":
        """What the server knows."""
        assert isinstance(self.cloud, CloudProject)
        return self.cloud

    # --- Compute Engine ----------------------------------------------------------------------

    def _make(self, found: "re.Match[str]", query: Query) -> None:
        place, collection = _place(found["place"]), found["collection"]
        request = query.get("requestId", "")
        made = self.project.compute.insert(collection, place, self.json(), request)
        self.send_json(made, query)

    def _look(self, found: "re.Match[str]", query: Query) -> None:
        place = _place(found["place"])
        if found["collection"] == "operations":
            self.send_json(self.project.compute.operation(found["name"]), query)
            return
        one = self.project.compute.get(found["collection"], place, found["name"])
        self.send_json(one, query)

    def _delete(self, found: "re.Match[str]", query: Query) -> None:
        place, request = _place(found["place"]), query.get("requestId", "")
        done = self.project.compute.delete(found["collection"], place, found["name"], request)
        self.send_json(done, query)

    def _set_labels(self, found: "re.Match[str]", query: Query) -> None:
        place, request = _place(found["place"]), query.get("requestId", "")
        done = self.project.compute.set_labels(place, found["name"], self.json(), request)
        self.send_json(done, query)

    def _aggregated(self, found: "re.Match[str]", query: Query) -> None:
        """List a collection in all zones, page by page."""
        collection = found["collection"]
        label = re.fullmatch(r"labels\.([\w-]+)=([\w-]+)", query.get("filter", ""))
        if label is None:
            raise Refusal(400, "invalid", "Invalid value for field 'filter'")
        things = [
            one
            for one in self.project.compute.all(collection)
            if one.get("labels", {}).get(label[1]) == label[2]
        ]
        first, most = int(query.get("pageToken", "0")), int(query.get("maxResults", "500"))
        most = min(most, self.project.page)
        places: dict[str, dict[str, Any]] = {}
        for one in things[first : first + most]:
            places.setdefault(one["zone"], {collection: []})[collection].append(one)
        answer: dict[str, Any] = {"items": places}
        if first + most < len(things):
            answer["nextPageToken"] = str(first + most)
        self.send_json(answer, query)

    # --- service accounts, rights on buckets ---------------------------------------------------

    def _create_account(self, found: "re.Match[str]", query: Query) -> None:
        body = self.json()
        email = f"{body['accountId']}@{found['project']}.iam.gserviceaccount.com"
        if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", str(body["accountId"])):
            raise Refusal(400, "invalid", f"Invalid account id {body['accountId']}")
        if email in self.project.service_accounts:
            raise Refusal(409, "alreadyExists", f"Service account {email} already exists")
        self.project.service_accounts[email] = {**body.get("serviceAccount", {}), "email": email}
        self.send_json(self.project.service_accounts[email], query)

    def _account(self, found: "re.Match[str]", query: Query) -> None:
        try:
            one = self.project.service_accounts[found["email"]]
        except KeyError:
            raise Refusal(404, "notFound", "Unknown service account") from None
        if self.command == "DELETE":
            del self.project.service_accounts[found["email"]]
        self.send_json(one, query)

    def _create_bucket_of_project(self, _: "re.Match[str]", query: Query) -> None:
        body = self.json()
        name = str(body.get("name"))
        self.cloud.buckets.create(name)
        self.project.bucket_settings[name] = body
        self.send_json({**body, **self.cloud.buckets.described(name)}, query)

    def _show_bucket_of_project(self, found: "re.Match[str]", query: Query) -> None:
        name = found["bucket"]
        described = self.cloud.buckets.described(name)
        self.send_json({**self.project.bucket_settings.get(name, {}), **described}, query)

    def _policy(self, found: "re.Match[str]", query: Query) -> None:
        name = found["bucket"]
        self.cloud.buckets.described(name)
        if self.command == "PUT":
            policy = self.json()
            for binding in policy.get("bindings", []):
                for member in binding["members"]:
                    if member.partition(":")[2] not in self.project.service_accounts:
                        raise Refusal(400, "invalid", f"Service account {member} does not exist.")
            self.project.policies[name] = policy
        self.send_json(self.project.policies.get(name, {"bindings": []}), query)


class CloudProject(CloudStorage):
    """The server, in threads of this process, while the context lasts."""

    routes = ProjectRoutes

    def __init__(
        self, folder: Path, port: int = 0, delay: float = 0.0, machines: Machines | None = None
    ) -> None:
        super().__init__(folder, port, delay)
        self.compute = Collections(machines)
        self.service_accounts: dict[str, dict[str, Any]] = {}
        self.bucket_settings: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.page = 500
        """Most things of one page."""

    @property
    def left(self) -> list[str]:
        """Return all that is there: things, service accounts, buckets."""
        buckets = [f"bucket/{name}" for name in self.buckets.names]
        return [*self.compute.names, *self.service_accounts, *buckets]


def _place(path: str) -> str:
    return path.rpartition("/")[2]


Route = Callable[[ProjectRoutes, "re.Match[str]", Query], None]
_COMPUTE = r"/compute/v1/projects/[^/]+"
_IN_PLACE = rf"{_COMPUTE}/(?P<place>global|regions/[^/]+|zones/[^/]+)/(?P<collection>\w+)"
_ACCOUNTS = r"/v1/projects/(?P<project>[^/]+)/serviceAccounts"
_ROUTES: tuple[tuple[str, str, Route], ...] = (
    ("POST", _IN_PLACE, ProjectRoutes._make),
    ("GET", rf"{_IN_PLACE}/(?P<name>[^/]+)", ProjectRoutes._look),
    ("DELETE", rf"{_IN_PLACE}/(?P<name>[^/]+)", ProjectRoutes._delete),
    ("POST", rf"{_IN_PLACE}/(?P<name>[^/]+)/setLabels", ProjectRoutes._set_labels),
    ("GET", rf"{_COMPUTE}/aggregated/(?P<collection>\w+)", ProjectRoutes._aggregated),
    ("POST", _ACCOUNTS, ProjectRoutes._create_account),
    ("GET", rf"{_ACCOUNTS}/(?P<email>[^/]+)", ProjectRoutes._account),
    ("DELETE", rf"{_ACCOUNTS}/(?P<email>[^/]+)", ProjectRoutes._account),
    ("POST", r"/storage/v1/b", ProjectRoutes._create_bucket_of_project),
    ("GET", r"/storage/v1/b/(?P<bucket>[^/]+)", ProjectRoutes._show_bucket_of_project),
    ("GET", r"/storage/v1/b/(?P<bucket>[^/]+)/iam", ProjectRoutes._policy),
    ("PUT", r"/storage/v1/b/(?P<bucket>[^/]+)/iam", ProjectRoutes._policy),
)
