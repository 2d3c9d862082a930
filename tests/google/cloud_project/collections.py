"""What a project holds besides buckets: things by collection and place, and operations on them."""

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from tests.google.cloud_storage.buckets import Refusal

Thing = dict[str, Any]


class Machines(Protocol):
    """What starts real hosts for instances; without, instances are only written down."""

    def start(self, instance: Thing) -> str:
        """Start a host; return its address."""
        ...

    def stop(self, name: str) -> None:
        """Kill a host and all that runs on it, and forget its disk."""
        ...

    def lives(self, name: str) -> bool:
        """Return whether the host is on."""
        ...

    @property
    def running(self) -> dict[str, int]:
        """The processes of hosts that are on, by the host's name."""
        ...


class Collections:
    """All things, by (collection, place, name): place is `global`, a region or a zone."""

    def __init__(self, machines: Machines | None = None) -> None:
        # Zones that have no machine left.
        self.exhausted: set[str] = set()
        # Most instances; None: no limit.
        self.quota: int | None = None
        # How often an operation is looked at until it is done.
        self.looks = 1
        self._machines = machines
        self._things: dict[tuple[str, str, str], Thing] = {}
        self._operations: dict[str, Thing] = {}
        self._by_request: dict[str, Thing] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def all(self, collection: str) -> list[Thing]:
        """Return what is in a collection, wherever."""
        with self._lock:
            self._notice_ends()
            things = sorted(self._things.items(), key=lambda item: item[0])
            return [thing for (kind, _, _), thing in things if kind == collection]

    def instance(self, name: str) -> Thing:
        """Return an instance, wherever; raise Refusal 404."""
        for instance in self.all("instances"):
            if instance["name"] == name:
                return instance
        raise Refusal(404, "notFound", f"The instance '{name}' was not found")

    @property
    def names(self) -> list[str]:
        """Return all that is there, such as `instances/kgym-1`."""
        with self._lock:
            return sorted(f"{kind}/{name}" for kind, _, name in self._things)

    def get(self, collection: str, place: str, name: str) -> Thing:
        """Return one; raise Refusal 404."""
        with self._lock:
            self._notice_ends()
            try:
                return self._things[collection, place, name]
            except KeyError:
                path = f"projects/kgym/{place}/{collection}/{name}"
                raise Refusal(404, "notFound", f"The resource '{path}' was not found") from None

    def insert(self, collection: str, place: str, body: Thing, request: str) -> Thing:
        """Make one; return the operation. The same request has the same operation."""

        def do() -> Thing | None:
            name = str(body.get("name", ""))
            if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
                raise Refusal(400, "invalid", f"Invalid value for field 'resource.name': '{name}'")
            if (collection, place, name) in self._things:
                raise Refusal(409, "alreadyExists", f"The resource '{name}' already exists")
            self._check_uses(body)
            made = {
                **body,
                "id": str(next(self._numbers)),
                "creationTimestamp": datetime.now(UTC).isoformat(),
            }
            if collection == "instances":
                if error := self._no_room(place):
                    return error
                self._start(place, made)
            elif collection == "addresses":
                made["address"] = f"203.0.113.{next(self._numbers) % 250 + 1}"
            self._things[collection, place, name] = made
            return None

        return self._operation(place, request, do)

    def delete(self, collection: str, place: str, name: str, request: str) -> Thing:
        """Remove one; return the operation."""

        def do() -> None:
            self.get(collection, place, name)
            path = rf"{collection}/{name}"
            for (kind, _, other), thing in self._things.items():
                if re.search(rf"(^|/){re.escape(path)}['\"]", repr(thing)):
                    message = f"The {collection} resource '{name}' is used by '{kind}/{other}'"
                    raise Refusal(400, "resourceInUseByAnotherResource", message)
            del self._things[collection, place, name]
            if collection == "instances":
                del self._things["disks", place, name]
                if self._machines is not None:
                    self._machines.stop(name)

        return self._operation(place, request, do)

    def operation(self, name: str) -> Thing:
        """Look at an operation once more; raise Refusal 404."""
        with self._lock:
            try:
                operation = self._operations[name]
            except KeyError:
                raise Refusal(404, "notFound", f"The operation '{name}' was not found") from None
            operation["looks"] += 1
            if operation["looks"] >= self.looks:
                operation["status"] = "DONE"
            return _shown(operation)

    def preempt(self, name: str) -> None:
        """Take a host away, as the cloud does with spot VMs."""
        with self._lock:
            (key,) = (key for key in self._things if key[0] == "instances" and key[2] == name)
        self.delete("instances", key[1], name, "")

    def stopped(self, name: str) -> None:
        """Let an instance be off, as when its system has shut down."""
        self.instance(name)["status"] = "TERMINATED"

    def _notice_ends(self) -> None:
        if self._machines is None:
            return
        for (kind, _, name), thing in self._things.items():
            if kind == "instances" and not self._machines.lives(name):
                thing["status"] = "TERMINATED"

    def _operation(self, place: str, request: str, do: Callable[[], Thing | None]) -> Thing:
        with self._lock:
            if request and request in self._by_request:
                return _shown(self._by_request[request])
            error = do()
            name = f"operation-{next(self._numbers)}"
            made: Thing = {"name": name, "status": "RUNNING", "looks": 0, "place": place}
            if error is not None:
                made["error"] = {"errors": [error]}
            self._operations[name] = made
            if request:
                self._by_request[request] = made
            return _shown(made)

    def _check_uses(self, body: Mapping[str, Any]) -> None:
        """Raise Refusal 400 unless the network and subnetworks that it names are there."""
        for kind, name in re.findall(r"/(networks|subnetworks)/([a-z0-9-]+)['\"]", repr(body)):
            if not any(key[0] == kind and key[2] == name for key in self._things):
                message = f"The referenced {kind} resource '{name}' cannot be found"
                raise Refusal(400, "invalid", message)

    def _no_room(self, zone: str) -> Thing | None:
        if zone in self.exhausted:
            message = f"The zone '{zone}' does not have enough resources available"
            return {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}
        if self.quota is not None and len(self.all("instances")) >= self.quota:
            message = f"Quota 'INSTANCES' exceeded. Limit: {self.quota}"
            return {"code": "QUOTA_EXCEEDED", "message": message}
        return None

    def _start(self, zone: str, made: Thing) -> None:
        number = int(made["id"])
        address = f"10.128.{number // 250}.{number % 250 + 2}"
        if self._machines is not None:
            address = self._machines.start(made)
        made["status"], made["zone"] = "RUNNING", f"zones/{zone}"
        made["networkInterfaces"][0]["networkIP"] = address
        parameters = made["disks"][0]["initializeParams"]
        self._things["disks", zone, made["name"]] = {
            "name": made["name"],
            "zone": f"zones/{zone}",
            "labels": parameters.get("labels", {}),
            "sizeGb": str(parameters["diskSizeGb"]),
        }


def _shown(operation: Thing) -> Thing:
    return {key: value for key, value in operation.items() if key not in {"looks", "place"}}
