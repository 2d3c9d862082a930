"""VMs from their making to their end, and all that happens to them on the way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.vmmanager.gce.conftest import Opened

from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym_dev.cloud_compute.server import CloudCompute
from kgym_vmmanager.gce.instance_name import instance_name
from kgym_vmmanager.vm.provider import Boot, Vm, VmLost

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

BEGINS = b"kgym: helper begins"


class Heard:
    """A console's words."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, data: bytes) -> None:
        self.data += data

    async def wait(self, words: bytes) -> None:
        """Wait until this was said."""
        async with asyncio.timeout(60):
            while words not in self.data:
                await asyncio.sleep(0.05)


async def test_it_has_no_rights_no_outer_address_and_an_end(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    async with opened() as host, host.running(boot, Heard()):
        (made,) = cloud.made
    assert "serviceAccounts" not in made
    assert "accessConfigs" not in made["networkInterfaces"][0]
    assert made["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert made["scheduling"]["provisioningModel"] == "SPOT"
    assert 60 < int(made["scheduling"]["maxRunDuration"]["seconds"]) < 7200
    assert set(made["labels"]) == {"kgym", "kgym-lease", "kgym-boot", "kgym-deadline"}
    assert cloud.all() == []


async def test_its_kernels_are_named_with_their_sums(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    async with opened() as host, host.running(boot, Heard()):
        (item,) = cloud.made[0]["metadata"]["items"]
    kernel, initrd, words, rest = item["value"].split("\n")
    assert rest == ""
    for line in (kernel, initrd):
        address, digest = line.split()
        assert address.startswith("http://169.254.10.1:")
        assert len(digest) == 64
    assert {"kgym_net=dhcp", "mem=512M", "nr_cpus=1", "console=ttyS0"} <= set(words.split())


async def test_the_console_is_read_up_to_the_moment(opened: Opened, boot: Boot) -> None:
    heard = Heard()
    async with opened() as host, host.running(boot, heard) as vm:
        await heard.wait(BEGINS)
        before = vm.console_until
        await vm.catch_up()
        assert vm.console_until > before
        assert vm.console_gap == ""


async def test_a_gap_in_the_console_is_told(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    cloud.faults.add("GET .*serialPort", "status", 503, times=1000)
    async with opened() as host, host.running(boot, Heard()) as vm:
        (instance,) = cloud.all()
        assert instance.machine is not None
        async with asyncio.timeout(60):
            while BEGINS not in instance.machine.console.read(0)[1]:
                await asyncio.sleep(0.05)
        cloud.lose_console(instance.name, 10)
        cloud.faults.clear()
        await vm.catch_up()
        assert vm.console_gap == "10 bytes from byte 0 on"


async def test_a_guest_that_resets_has_stopped(opened: Opened, boot: Boot) -> None:
    async with opened(image="resets") as host, host.running(boot, Heard()) as vm:
        async with asyncio.timeout(60):
            await vm.stopped.wait()
        assert vm.why_stopped == "guest-reset"


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (CloudCompute.preempt, "vm_preempted"),
        (CloudCompute.host_error, "vm_host_error"),
        (CloudCompute.vanish, "vm_vanished"),
    ],
)
async def test_a_vm_that_is_gone_is_lost_and_told_why(
    cloud: CloudCompute,
    opened: Opened,
    boot: Boot,
    happens: Callable[[CloudCompute, str], None],
    reason: str,
) -> None:
    async with opened() as host, host.running(boot, Heard()) as vm:
        happens(cloud, cloud.all()[0].name)
        async with asyncio.timeout(60):
            lost = await vm.died()
        assert isinstance(lost, VmLost)
        assert lost.reason == reason
        with pytest.raises(VmLost):  # nothing rests on a console that nobody can read
            await vm.catch_up()


async def test_where_there_is_no_room_at_the_lower_price_it_is_the_higher(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    cloud.no_spot |= {"zone-a", "zone-b"}
    async with opened() as host:
        async with host.running(boot, Heard()):
            pass
        async with host.running(boot, Heard()):
            pass
    tried = [one["scheduling"]["provisioningModel"] for one in cloud.made]
    assert tried == ["SPOT", "SPOT", "STANDARD", "STANDARD"]  # and what had none is remembered


async def test_a_zone_without_room_leads_to_the_next(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    cloud.exhausted.add("zone-a")
    async with opened() as host, host.running(boot, Heard()):
        assert [one.zone for one in cloud.all()] == ["zone-b"]


async def test_no_room_anywhere_is_the_infrastructures(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    cloud.exhausted |= {"zone-a", "zone-b"}
    async with opened() as host:
        with pytest.raises(InfrastructureError) as caught:
            async with host.running(boot, Heard()):
                pass
    assert caught.value.reason == "gce_stockout"


async def test_it_is_deleted_though_all_answers_are_lost(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    cloud.faults.add("POST .*/instances", "lost_answer", times=3)
    cloud.faults.add("DELETE ", "lost_answer", times=2)
    async with opened() as host, host.running(boot, Heard()):
        assert len(cloud.all()) == 1
    assert cloud.all() == []
    assert len(cloud.made) == 1


async def test_it_is_deleted_though_the_attempt_is_cancelled(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    async def live(vm: asyncio.Future[Vm]) -> None:
        async with opened() as host, host.running(boot, Heard()) as one:
            vm.set_result(one)
            await asyncio.Event().wait()

    vm: asyncio.Future[Vm] = asyncio.get_running_loop().create_future()
    living = asyncio.create_task(live(vm))
    await vm
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    assert cloud.all() == []


async def test_it_is_deleted_though_the_attempt_is_cancelled_while_it_is_made(
    cloud: CloudCompute, opened: Opened, boot: Boot
) -> None:
    async with opened() as host:
        cloud.delay = 0.5

        async def live() -> None:
            async with host.running(boot, Heard()):
                pass

        living = asyncio.create_task(live())
        async with asyncio.timeout(30):
            while not any("POST" in one for one in cloud.requests):
                await asyncio.sleep(0.02)
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        cloud.delay = 0.0
    assert len(cloud.made) == 1
    assert cloud.all() == []


async def test_what_another_worker_made_under_the_name_is_left_alone(
    cloud: CloudCompute, opened: Opened, boot: Boot, new_attempt: Callable[..., StepContext]
) -> None:
    run = new_attempt()
    async with opened(run) as first, first.running(boot, Heard()), opened(run) as second:
        with pytest.raises(InfrastructureError) as caught:
            async with second.running(boot, Heard()):
                pass
        assert caught.value.reason == "vm_of_another"
        name = instance_name(run.assignment.lease, boot.name)
        assert [one.name for one in cloud.all()] == [name]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"dump": "hypervisor"}, "no_dump_method"),
        ({"vm": {"root": "disk"}}, "no_cloud_disk"),
    ],
)
async def test_what_a_cloud_cannot_do_is_refused(
    opened: Opened, new_attempt: Callable[..., StepContext], asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        async with opened(new_attempt(**asked)):
            pass
    assert caught.value.reason == reason
