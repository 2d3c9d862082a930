"""What each path does: instances, their serial ports, operations, images."""

import re
import time
from typing import Any, cast

from tests.google.cloud_compute.state import Operation, State
from tests.google.cloud_storage.buckets import Refusal
from tests.google.cloud_storage.exchange import Exchange, Query

_WAIT_SECONDS = 30.0


class Routes(Exchange):
    """Answers requests."""

    @property
    def cloud(self) -> State:
        """What the server knows."""
        return cast(State, super().cloud)

    def _insert(self, match: "re.Match[str]", query: Query) -> None:
        project, zone = match.groups()
        wanted, request = self.json(), query.get("requestId", "")
        self.send_json(_shown(self.cloud.insert(project, zone, wanted, request)))

    def _delete(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(_shown(self.cloud.delete(*match.groups())))

    def _get(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(self.cloud.get(match[2], match[3]).resource)

    def _serial_port(self, match: "re.Match[str]", query: Query) -> None:
        instance = self.cloud.get(match[2], match[3])
        if instance.machine is None:
            message = f"The resource '{instance.name}' is not ready"
            raise Refusal(400, "resourceNotReady", message)
        start, data = instance.machine.console.read(int(query.get("start") or 0))
        document = {
            "kind": "compute#serialPortOutput",
            "contents": data.decode("utf-8", "replace"),
            "start": str(start),
            "next": str(start + len(data)),
        }
        self.send_json(document)

    def _list(self, match: "re.Match[str]", query: Query) -> None:
        here = [item.resource for item in self.cloud.all() if item.zone == match[2]]
        self.send_json(_page(_chosen(here, query), query))

    def _operation(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(_shown(self._named(match[3])))

    def _wait(self, match: "re.Match[str]", _: Query) -> None:
        operation = self._named(match[3])
        left = operation.done_at - time.monotonic()
        if left > 0:
            self.cloud.stopping.wait(min(left, _WAIT_SECONDS))
        self.send_json(_shown(operation))

    def _operations(self, match: "re.Match[str]", query: Query) -> None:
        wanted = re.fullmatch(r"targetId=(\d+)", query.get("filter", ""))
        if wanted is None:  # the service knows more; what is not known here is not passed over
            raise Refusal(400, "invalid", "Invalid list filter expression.")
        known = [
            _shown(operation)
            for operation in list(self.cloud.operations.values())
            if operation.zone == match[2] and operation.resource["targetId"] == wanted[1]
        ]
        self.send_json(_page(known[::-1], query))

    def _insert_image(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(_shown(self.cloud.make_image(match[1], self.json())))

    def _image(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(self.cloud.image(match[2]))

    def _list_images(self, match: "re.Match[str]", query: Query) -> None:
        known = [self.cloud.image(name) for name in list(self.cloud.images)]
        self.send_json(_page(_chosen(known, query), query))

    def _delete_image(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(_shown(self.cloud.delete_image(*match.groups())))

    def _global_operation(self, match: "re.Match[str]", _: Query) -> None:
        self.send_json(_shown(self._named(match[2])))

    def _named(self, name: str) -> Operation:
        operation = self.cloud.operations.get(name)
        if operation is None:
            raise Refusal(404, "notFound", f"The resource '{name}' was not found")
        return operation


def _shown(operation: Operation) -> dict[str, Any]:
    done = time.monotonic() >= operation.done_at
    document = {**operation.resource, "status": "DONE" if done else "RUNNING"}
    if done and operation.errors:
        document |= {
            "error": {"errors": operation.errors},
            "httpErrorStatusCode": operation.status,
            "httpErrorMessage": "SERVICE UNAVAILABLE",
        }
    return document


def _chosen(resources: list[dict[str, Any]], query: Query) -> list[dict[str, Any]]:
    """Return those with the labels that the filter names: `labels.NAME=VALUE`, joined by AND."""
    wanted = re.findall(r'labels\.([\w-]+)\s*[=:]\s*"?([\w*-]+)', query.get("filter", ""))
    return [
        resource
        for resource in resources
        if all(
            label in resource["labels"] and value in {"*", resource["labels"][label]}
            for label, value in wanted
        )
    ]


def _page(items: list[Any], query: Query) -> dict[str, Any]:
    first, most = int(query.get("pageToken") or 0), int(query.get("maxResults") or 500)
    page: dict[str, Any] = {"items": items[first : first + most]}
    if first + most < len(items):
        page["nextPageToken"] = str(first + most)
    return page


_ZONE = r"/zones/([^/]+)"
_NAMED = rf"{_ZONE}/instances/([^/]+)"
_TABLE = (
    ("POST", rf"{_ZONE}/instances", Routes._insert),
    ("GET", rf"{_ZONE}/instances", Routes._list),
    ("GET", _NAMED, Routes._get),
    ("DELETE", _NAMED, Routes._delete),
    ("GET", rf"{_NAMED}/serialPort", Routes._serial_port),
    ("GET", rf"{_ZONE}/operations", Routes._operations),
    ("GET", rf"{_ZONE}/operations/([^/]+)", Routes._operation),
    ("POST", rf"{_ZONE}/operations/([^/]+)/wait", Routes._wait),
    ("POST", r"/global/images", Routes._insert_image),
    ("GET", r"/global/images", Routes._list_images),
    ("GET", r"/global/images/([^/]+)", Routes._image),
    ("DELETE", r"/global/images/([^/]+)", Routes._delete_image),
    ("GET", r"/global/operations/([^/]+)", Routes._global_operation),
    ("POST", r"/global/operations/([^/]+)/wait", Routes._global_operation),
)
Routes.table = tuple(
    (method, f"/compute/v1/projects/([^/]+){path}", route) for method, path, route in _TABLE
)
