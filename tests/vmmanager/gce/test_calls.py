"""The service's calls, against a server that answers as it does, and as it does on bad days."""

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kgym.errors import InfrastructureError
from kgym_vmmanager.cloud.labels import labels
from kgym_vmmanager.cloud.sweeper import sweep
from kgym_vmmanager.gce.calls import Compute, Gone, NoRoom, Taken
from kgym_vmmanager.gce.options import GceOptions
from tests.google.cloud_compute.server import CloudCompute
from tests.refused import refused

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

ZONE = "zone-a"
INSERT = "POST .*/instances"
DELETE = "DELETE .*/instances"


def wanted(name: str, image: str = "waits", **more: Any) -> dict[str, Any]:
    """Return an instance to ask for."""
    source = f"projects/test/global/images/{image}"
    disks = [{"boot": True, "initialize_params": {"source_image": source}}]
    machine = f"zones/{ZONE}/machineTypes/n2-custom-2-512"
    return {"name": name, "machine_type": machine, "disks": disks, **more}


async def printed(compute: Compute, name: str, words: bytes) -> bytes:
    """Wait until a console has said this; return all that it has said."""
    async with asyncio.timeout(60):
        while words not in (output := (await compute.serial_port(ZONE, name, 0)).data):
            await asyncio.sleep(0.1)
    return output


async def test_a_vm_is_made_and_deleted(cloud: CloudCompute, compute: Compute) -> None:
    await compute.insert(ZONE, wanted("one"), "r1")
    address = (await compute.get(ZONE, "one")).network_interfaces[0].network_i_p
    assert address.startswith("127.8.0.")  # the first that no other emulated cloud uses
    await printed(compute, "one", b"kgym: machine begins")
    await compute.delete(ZONE, "one")
    with pytest.raises(Gone):
        await compute.get(ZONE, "one")
    await compute.delete(ZONE, "one")  # there is nothing to do


@pytest.mark.parametrize(
    "insert", [("lost_answer",), ("status", 429), ("status", 500), ("status", 503)]
)
async def test_lost_calls(cloud: CloudCompute, compute: Compute, insert: tuple[Any, ...]) -> None:
    """A lost or refused call makes no second VM."""
    cloud.faults.add(INSERT, *insert, times=2)
    await compute.insert(ZONE, wanted("one"), "r1")
    assert len(cloud.made) == len(cloud.all()) == 1
    with pytest.raises(Taken):
        await compute.insert(ZONE, wanted("one"), "r2")
    cloud.faults.add(DELETE, "lost_answer")
    cloud.faults.add(DELETE, "status", 409, times=2)  # another operation is running
    await compute.delete(ZONE, "one")
    assert cloud.all() == []


async def test_errors_of_an_operation_are_told_apart(cloud: CloudCompute, compute: Compute) -> None:
    with refused("gce_failed", "global/images/none", kind=InfrastructureError):
        await compute.insert(ZONE, wanted("one", image="none"), "r1")
    cloud.exhausted.add(ZONE)
    with refused("gce_stockout", kind=NoRoom):
        await compute.insert(ZONE, wanted("one"), "r2")
    cloud.exhausted.clear()
    cloud.quota = 0
    with refused("gce_quota", kind=NoRoom):
        await compute.insert(ZONE, wanted("one"), "r3")


@pytest.mark.parametrize(
    ("status", "reason"),
    [(429, "gce_rate_limit"), (503, "gce_unreachable"), (403, "gce_refused"), (400, "gce_failed")],
)
async def test_reasons(cloud: CloudCompute, compute: Compute, status: int, reason: str) -> None:
    """A call that does not pass has a reason."""
    cloud.faults.add(INSERT, "status", status, times=1000)
    with refused(reason, kind=InfrastructureError):
        await compute.insert(ZONE, wanted("one"), "r1")


async def test_a_failing_zone(cloud: CloudCompute, compute: Compute, options: GceOptions) -> None:
    """A zone that cannot be listed does not stop the sweep of the others."""
    marks = {"kgym": "kgym", "kgym-deadline": "1"}
    for name in ("one", "two"):
        await compute.insert("zone-b", wanted(name, labels=marks), name)
    cloud.faults.add("GET .*/zone-a/instances", "status", 403)
    cloud.faults.add("DELETE .*/one", "status", 403)
    assert await sweep(compute.owned()) == ["two"]
    assert await sweep(compute.owned()) == ["one"]


async def test_the_sweeper_takes_what_is_left_of_attempts_that_have_ended(
    cloud: CloudCompute, compute: Compute, options: GceOptions, tmp_path: Path
) -> None:
    ended, runs, lost = uuid4(), uuid4(), uuid4()
    deadline = time.time() + 400
    for name, lease in (("ended", ended), ("runs", runs), ("unanswered", lost)):
        marks = labels("kgym", lease, uuid4(), deadline)
        await compute.insert(ZONE, wanted(name, labels=marks), name)
    await compute.insert(ZONE, wanted("bad", labels={**marks, "kgym-lease": "x"}), "bad")
    cloud.images["image"] = tmp_path / "image"
    cloud.images["image"].touch()
    cloud.image_labels["image"] = labels("kgym", ended, uuid4(), deadline)
    asked = []

    async def has_ended(lease: UUID) -> bool:
        asked.append(lease)
        if lease == lost:
            raise InfrastructureError("scheduler_unreachable", "it is away")
        return lease == ended

    assert sorted(await sweep(compute.owned(), has_ended)) == ["ended", "image"]
    assert sorted(asked) == sorted([ended, runs, lost])  # each once
    assert sorted(instance.name for instance in cloud.all()) == ["bad", "runs", "unanswered"]


async def test_expired_vms_are_swept(cloud: CloudCompute, compute: Compute, tmp_path: Path) -> None:
    """Nothing else is."""
    cloud.skew = -86400.0  # what the service's clock says counts for nothing
    now = int(time.time())
    for name, owner, deadline in (
        ("over", "kgym", now - 400),
        ("lives", "kgym", now - 200),  # another host's clock may be behind
        ("others", "somebody", now - 4000),
    ):
        marks = {"kgym": owner, "kgym-deadline": str(deadline)}
        await compute.insert(ZONE, wanted(name, labels=marks), name)
    for name, deadline in (("helper", None), ("over-image", now - 400), ("lives-image", now + 400)):
        cloud.images[name] = tmp_path / name
        cloud.images[name].touch()
        cloud.image_labels[name] = {"kgym": "kgym"} | (
            {"kgym-deadline": str(deadline)} if deadline else {}
        )
    assert await sweep(compute.owned()) == ["over", "over-image"]
    assert sorted(instance.name for instance in cloud.all()) == ["lives", "others"]
    assert {"helper", "lives-image", "waits"} <= set(cloud.images)
