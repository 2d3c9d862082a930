"""VMs from their making to their end, and all that happens to them on the way."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import DumpFailure
from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.cloud.labels import instance_name
from kgym_vmmanager.cloud.zones import Place
from kgym_vmmanager.dump.guest_memory import Dump, Scene
from kgym_vmmanager.dump.kdump import Kdump
from kgym_vmmanager.gce import boot_disk
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.machine import GceVm
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.ssh import Ssh
from kgym_vmmanager.vm.provider import Boot, Vm, VmHost, VmLost
from tests.google.cloud_compute.server import CloudCompute
from tests.refused import refused
from tests.vmmanager.gce.conftest import Opened

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

BEGINS = boot_disk.BEGINS.encode()


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


async def test_its_resource(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
    """It has no rights, no outer address, and an end."""
    async with opened() as host, host.running(boot, Heard()):
        (made,) = cloud.made
    assert "serviceAccounts" not in made
    assert "accessConfigs" not in made["networkInterfaces"][0]
    assert made["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert made["scheduling"]["provisioningModel"] == "SPOT"
    assert 60 < int(made["scheduling"]["maxRunDuration"]["seconds"]) < 7200
    assert set(made["labels"]) == {"kgym", "kgym-lease", "kgym-boot", "kgym-deadline"}
    assert cloud.all() == []


async def test_kernels_have_their_sums(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
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
    async with opened(image="resets") as host, host.running(boot, Heard()) as vm:
        async with asyncio.timeout(60):
            await vm.stopped.wait()
        assert vm.why_stopped == "guest-reset"


async def test_a_gap_in_the_console(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
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


async def test_a_refused_kernel_takes_an_image_of_its_own(opened: Opened, boot: Boot) -> None:
    async with opened(image="refuses") as host:
        async with host.running(boot, Heard()) as vm, asyncio.timeout(60):
            while vm.trouble is None:
                await asyncio.sleep(0.05)
        assert isinstance(vm.trouble, VmLost)
        assert vm.trouble.reason == "helper_refused"
        assert "Exec format error" in vm.trouble.message
        with pytest.raises(InfrastructureError) as caught:
            async with host.running(boot, Heard()):
                pass
        assert caught.value.reason == "no_kernel_image"  # there is no bucket to give it by
    async with opened(image="fails") as host:
        async with host.running(boot, Heard()) as vm, asyncio.timeout(60):
            while vm.trouble is None:
                await asyncio.sleep(0.05)
        assert vm.trouble.reason == "helper_failed"
        assert vm.trouble.message == "in the VM: no metadata"


@pytest.mark.attack
async def test_words_of_the_kernel_are_not_the_helpers(compute: Compute) -> None:
    refused = b"kgym: helper refused: x\n"
    helped = GceVm(compute, Place("z", spot=True), "one", 1, ("", 1), lambda _: None, helped=True)
    helped.take(b"kgym: helper starts the kernel\n" + b"[ 0.0] x\n" * 20 + refused)
    own = GceVm(compute, Place("z", spot=True), "two", 2, ("", 1), lambda _: None)
    own.take(refused)
    assert (helped.trouble, own.trouble, own.refused) == (None, None, False)
    helped = GceVm(compute, Place("z", spot=True), "one", 1, ("", 1), lambda _: None, helped=True)
    helped.take(b"kgym: helper starts the kernel\n[ 0.0] kexec: x\n" + refused)
    assert isinstance(helped.trouble, VmLost)


async def test_lost_dump(cloud: CloudCompute, opened: Opened, boot: Boot, tmp_path: Path) -> None:
    """A VM that is gone during its dump is the reason for the missing dump."""
    console = Console(tmp_path / "console.log")
    async with opened() as host, host.running(boot, console.feed) as vm:

        def connect(limit: float) -> AbstractAsyncContextManager[Ssh]:
            raise AssertionError  # nobody has said that it is there

        scene = Scene(vm, console, True, 512, 600, connect)
        taking = asyncio.create_task(Dump(Kdump(512, ""), tmp_path / "dump").take(scene))
        await asyncio.sleep(0.5)
        assert not taking.done()
        cloud.preempt(cloud.all()[0].name)
        async with asyncio.timeout(60):
            taken = await taking
    console.close()
    assert (taken.failure, taken.attempts) == (DumpFailure.VM_LOST, 1)
    assert "vm_preempted" in taken.message


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


async def test_spot_then_standard(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
    """Where there is no room at the lower price, the higher one is paid."""
    cloud.no_spot |= {"zone-a", "zone-b"}
    async with opened() as host:
        async with host.running(boot, Heard()):
            pass
        async with host.running(boot, Heard()):
            pass
    tried = [request["scheduling"]["provisioningModel"] for request in cloud.made]
    assert tried == ["SPOT", "SPOT", "STANDARD", "STANDARD"]  # and what had none is remembered
    cloud.exhausted.add("zone-a")
    async with opened() as host, host.running(boot, Heard()):
        assert [instance.zone for instance in cloud.all()] == ["zone-b"]
    cloud.exhausted.add("zone-b")
    async with opened() as host:
        with refused("gce_stockout", kind=InfrastructureError):
            async with host.running(boot, Heard()):
                pass


async def test_lost_answers(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
    """The VM is deleted though all answers are lost."""
    cloud.faults.add("POST .*/instances", "lost_answer", times=3)
    cloud.faults.add("DELETE ", "lost_answer", times=2)
    async with opened() as host, host.running(boot, Heard()):
        assert len(cloud.all()) == 1
    assert cloud.all() == []
    assert len(cloud.made) == 1


async def test_a_cancelled_attempt(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
    """Its VM is deleted."""

    async def live(vm: asyncio.Future[Vm]) -> None:
        async with opened() as host, host.running(boot, Heard()) as running:
            vm.set_result(running)
            await asyncio.Event().wait()

    vm: asyncio.Future[Vm] = asyncio.get_running_loop().create_future()
    living = asyncio.create_task(live(vm))
    await vm
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    assert cloud.all() == []


async def test_a_cancelled_insertion(cloud: CloudCompute, opened: Opened, boot: Boot) -> None:
    """The VM is deleted though the attempt is cancelled while it is made."""
    async with opened() as host:
        cloud.delay = 0.5

        async def live() -> None:
            async with host.running(boot, Heard()):
                pass

        living = asyncio.create_task(live())
        async with asyncio.timeout(30):
            while not any("POST" in request for request in cloud.requests):
                await asyncio.sleep(0.02)
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        cloud.delay = 0.0
    assert len(cloud.made) == 1
    assert cloud.all() == []


async def test_a_vm_of_another_worker_is_left_alone(
    cloud: CloudCompute, opened: Opened, boot: Boot, run: StepContext
) -> None:
    """A VM that another worker made under the same name is left alone."""
    async with opened(run) as first, first.running(boot, Heard()), opened(run) as second:
        with refused("vm_of_another", kind=InfrastructureError):
            async with second.running(boot, Heard()):
                pass
        name = instance_name(run.assignment.lease, boot.name)
        assert [instance.name for instance in cloud.all()] == [name]


async def test_a_vm_of_another_worker_in_another_zone_is_left_alone(
    cloud: CloudCompute, opened: Opened, boot: Boot, run: StepContext
) -> None:
    """A VM that another worker made while a zone had no room is left alone."""
    cloud.exhausted.add("zone-a")
    async with opened(run) as first_host, opened(run) as second_host, AsyncExitStack() as first:
        await first.enter_async_context(first_host.running(boot, Heard()))
        cloud.exhausted.clear()
        async with second_host.running(boot, Heard()):
            assert sorted(vm.zone for vm in cloud.all()) == ["zone-a", "zone-b"]
            await first.aclose()
            assert [vm.zone for vm in cloud.all()] == ["zone-a"]


async def test_a_cancelled_attempt_leaves_the_vm_of_another_alone(
    cloud: CloudCompute, opened: Opened, boot: Boot, run: StepContext
) -> None:
    """An attempt that is cancelled leaves another worker's VM alone."""

    async def live(host: VmHost) -> None:
        async with host.running(boot, Heard()):
            pass

    async with opened(run) as first, opened(run) as second, first.running(boot, Heard()):
        cloud.delay, before = 0.5, sum("POST" in request for request in cloud.requests)
        living = asyncio.create_task(live(second))
        async with asyncio.timeout(30):
            while sum("POST" in request for request in cloud.requests) == before:
                await asyncio.sleep(0.02)
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        cloud.delay = 0.0
        assert len(cloud.all()) == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"dump": "hypervisor"}, "no_dump_method"), ({"vm": {"root": "disk"}}, "no_cloud_disk")],
)
async def test_what_a_cloud_cannot_do_is_refused(
    opened: Opened, new_attempt: Callable[..., StepContext], asked: dict[str, Any], reason: str
) -> None:
    with refused(reason):
        async with opened(new_attempt(**asked)):
            pass
