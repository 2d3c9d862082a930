"""What the server knows: images, instances, operations, and the faults to come."""

import errno
import itertools
import tarfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.google.cloud_compute.machine import Machine, shape_of
from tests.google.cloud_storage.buckets import Refusal
from tests.google.cloud_storage.state import Requests


@dataclass
class Instance:
    """An instance, and its machine while it runs."""

    zone: str
    resource: dict[str, Any]
    address: str
    machine: Machine | None
    ends_at: float | None
    preempted_at: float | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.resource["name"])


@dataclass
class Operation:
    """Something that was asked for, and came to an end: with errors, or without."""

    zone: str
    resource: dict[str, Any]
    done_at: float
    errors: list[dict[str, str]] = field(default_factory=list)
    status: int = 0


class State(Requests):
    """All that the server knows.

    Clients' `reachable` addresses in the instances' network lead to addresses here; `images`
    are disks by their names. `skew` seconds are added to the times that it tells.
    """

    def __init__(self, folder: Path, storage: str = "") -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # The address of the server that has the objects of which images are made.
        self.storage = storage
        self.images: dict[str, Path] = {}
        self.image_labels: dict[str, dict[str, str]] = {}
        self.instances: dict[tuple[str, str], Instance] = {}
        self.operations: dict[str, Operation] = {}
        self.reachable: dict[tuple[str, int], tuple[str, int]] = {}
        # Zones that have no machine left.
        self.exhausted: set[str] = set()
        # Zones that have none left at the lower price.
        self.no_spot: set[str] = set()
        # How many instances there may be.
        self.quota = 1 << 30
        # The next instances at the lower price end after so many seconds each.
        self.preempt_after: list[float] = []
        self.operation_seconds = 0.05
        self.skew = 0.0
        # All that instances were asked to be.
        self.made: list[dict[str, Any]] = []
        self._by_request: dict[str, Operation] = {}
        self._numbers = itertools.count(1)
        self._changing = threading.RLock()

    # --- what a client asks for ----------------------------------------------------------------

    def insert(self, project: str, zone: str, wanted: dict[str, Any], request: str) -> Operation:
        """Make an instance; the same request is done once."""
        with self._changing:
            if request and request in self._by_request:
                return self._by_request[request]
            name = str(wanted.get("name", ""))
            if (zone, name) in self.instances:
                raise Refusal(409, "alreadyExists", f"The resource '{name}' already exists")
            if len(self.instances) >= self.quota:
                raise Refusal(403, "quotaExceeded", f"Quota 'INSTANCES' exceeded: {self.quota}")
            self.made.append(wanted)
            operation = self._operation("insert", project, zone, name)
            scheduling = wanted.get("scheduling", {})
            spot = scheduling.get("provisioningModel") == "SPOT"
            if zone in self.exhausted or (spot and zone in self.no_spot):
                message = f"The zone '{zone}' does not have enough resources available"
                operation.errors = [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}]
                operation.status = 503
            else:
                self._start(zone, wanted, spot=spot)
            self._by_request[request or operation.resource["name"]] = operation
            return operation

    def delete(self, project: str, zone: str, name: str) -> Operation:
        """Remove an instance."""
        with self._changing:
            instance = self.get(zone, name)
            self._remove(instance)
            return self._operation("delete", project, zone, name)

    def get(self, zone: str, name: str) -> Instance:
        """Return an instance; one whose time is over is removed first."""
        with self._changing:
            self._look()
            instance = self.instances.get((zone, name))
            if instance is None:
                raise Refusal(404, "notFound", f"The resource '{zone}/{name}' was not found")
            return instance

    def all(self) -> list[Instance]:
        """Return all instances."""
        with self._changing:
            self._look()
            return list(self.instances.values())

    def make_image(self, project: str, wanted: dict[str, Any]) -> Operation:
        """Make an image of a packed disk in a bucket."""
        name, source = str(wanted.get("name", "")), str(wanted.get("rawDisk", {}).get("source", ""))
        with self._changing:
            if name in self.images:
                raise Refusal(409, "alreadyExists", f"The resource '{name}' already exists")
            bucket, _, key = source.partition("storage.googleapis.com/")[2].partition("/")
            url = f"{self.storage}/storage/v1/b/{bucket}/o/{quote(key, safe='')}?alt=media"
            packed, disk = self.folder / f"{name}.tar.gz", self.folder / f"{name}.raw"
            # The address is that of a server of ours.
            with urllib.request.urlopen(url, timeout=60) as body:
                packed.write_bytes(body.read())
            with tarfile.open(packed) as archive:
                names = archive.getnames()
                size = archive.getmember("disk.raw").size if names == ["disk.raw"] else 1
                if size % (1 << 30):
                    raise Refusal(400, "invalid", "one disk.raw of whole GiB is wanted")
                source_file = archive.extractfile("disk.raw")
                assert source_file is not None
                with disk.open("wb") as sink:
                    while data := source_file.read(1 << 20):
                        if data.count(0) == len(data):
                            sink.seek(len(data), 1)
                        else:
                            sink.write(data)
                    sink.truncate(size)
            packed.unlink()
            self.images[name] = disk
            self.image_labels[name] = wanted.get("labels", {})
            return self._operation("insert", project, "", name)

    def delete_image(self, project: str, name: str) -> Operation:
        """Remove an image; instances that were made of it go on."""
        with self._changing:
            self.image(name)
            self.images.pop(name).unlink()
            self.image_labels.pop(name, None)
            return self._operation("delete", project, "", name)

    def image(self, name: str) -> dict[str, Any]:
        """Return what is told of an image."""
        if name not in self.images:
            raise Refusal(404, "notFound", f"The resource 'global/images/{name}' was not found")
        marks = self.image_labels.get(name, {})
        return {"kind": "compute#image", "name": name, "status": "READY", "labels": marks}

    # --- what happens to instances -------------------------------------------------------------

    def preempt(self, name: str) -> None:
        """Take an instance at the lower price back."""
        self._lose(name, "compute.instances.preempted")

    def host_error(self, name: str) -> None:
        """Let an instance's host fail."""
        self._lose(name, "compute.instances.hostError")

    def vanish(self, name: str) -> None:
        """Let an instance be gone, and nobody know why."""
        self._lose(name, "")

    def lose_console(self, name: str, count: int) -> None:
        """Let so many bytes of what an instance's serial port has said be gone."""
        for instance in self.all():
            if instance.name == name and instance.machine is not None:
                instance.machine.console.lose(count)

    def end_all(self) -> None:
        """Switch all machines off."""
        with self._changing:
            for instance in list(self.instances.values()):
                self._remove(instance)

    def _lose(self, name: str, kind: str) -> None:
        with self._changing:
            for instance in [known for known in self.instances.values() if known.name == name]:
                if kind:
                    self._operation(kind, "", instance.zone, name)
                self._remove(instance)

    def _look(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for instance in list(self.instances.values()):
            if instance.preempted_at is not None and now >= instance.preempted_at:
                self.preempt(instance.name)
            elif instance.ends_at is not None and now >= instance.ends_at:
                self._remove(instance)
            elif instance.machine is not None and not instance.machine.runs:
                self._operation(
                    "compute.instances.guestTerminate", "", instance.zone, instance.name
                )
                instance.machine.end()
                instance.machine = None
                instance.resource["status"] = "TERMINATED"

    def _remove(self, instance: Instance) -> None:
        del self.instances[instance.zone, instance.name]
        if instance.machine is not None:
            instance.machine.end()

    def _start(self, zone: str, wanted: dict[str, Any], *, spot: bool) -> None:
        image = str(wanted["disks"][0]["initializeParams"]["sourceImage"]).rpartition("/")[2]
        if image not in self.images:
            raise Refusal(404, "notFound", f"The resource 'global/images/{image}' was not found")
        used = {instance.address for instance in self.instances.values()}
        free = (f"127.8.{number >> 8}.{number & 255}" for number in range(1, 1 << 16))
        items = wanted.get("metadata", {}).get("items", [])
        attributes = {item["key"]: item["value"] for item in items}
        shape = shape_of(str(wanted.get("machineType", "")))
        for address in (candidate for candidate in free if candidate not in used):
            try:
                machine = Machine(address, self.images[image], shape, attributes, self.reachable)
                break
            except OSError as error:  # another server's machine has the address
                if error.errno != errno.EADDRINUSE:
                    raise
        now = time.monotonic()
        seconds = wanted.get("scheduling", {}).get("maxRunDuration", {}).get("seconds")
        instance = Instance(
            zone,
            self._described(zone, wanted, address),
            address,
            machine,
            now + float(seconds) if seconds else None,
            now + self.preempt_after.pop(0) if spot and self.preempt_after else None,
        )
        self.instances[zone, instance.name] = instance

    def _described(self, zone: str, wanted: dict[str, Any], address: str) -> dict[str, Any]:
        return {
            "kind": "compute#instance",
            "id": str(next(self._numbers)),
            "name": wanted["name"],
            "zone": f"{self.url}/compute/v1/projects/p/zones/{zone}",
            "machineType": wanted.get("machineType", ""),
            "status": "RUNNING",
            "labels": wanted.get("labels", {}),
            "scheduling": wanted.get("scheduling", {}),
            "creationTimestamp": self._time(),
            "networkInterfaces": [{"name": "nic0", "networkIP": address}],
        }

    def _operation(self, kind: str, project: str, zone: str, target: str) -> Operation:
        now = time.monotonic()
        for name in [name for name, old in self.operations.items() if old.done_at < now - 600]:
            del self.operations[name]
        number = next(self._numbers)
        known = self.instances.get((zone, target))
        place = f"{self.url}/compute/v1/projects/{project}/zones/{zone}"
        resource = {
            "kind": "compute#operation",
            "id": str(number),
            "name": f"operation-{number}",
            "operationType": kind,
            "targetLink": f"{place}/instances/{target}",
            "targetId": known.resource["id"] if known else "0",
            "insertTime": self._time(),
        }
        operation = Operation(zone, resource, now + self.operation_seconds)
        self.operations[str(resource["name"])] = operation
        return operation

    def _time(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(time.time() + self.skew))
