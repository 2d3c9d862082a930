"""What VMs may write to the host's disk."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kgym.api.steps import VmShape
from kgym.errors import InfrastructureError
from kgym.host import sandbox
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.disk_room import MOST_WRITTEN, SPARE, DiskRoom, overlay_bytes
from kgym_vmmanager.vm.qemu import DISK, QemuVm, qemu_arguments
from tests.refused import refused
from tests.vmmanager.conftest import without_kernel

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def test_a_guest_may_write_as_much_as_a_small_disk_has() -> None:
    assert overlay_bytes(0) < 32 * MIB
    assert (1 << 30) < overlay_bytes(1 << 30) < (1 << 30) + 32 * MIB
    assert MOST_WRITTEN < overlay_bytes(32 << 30) == overlay_bytes(MOST_WRITTEN)


async def test_what_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with refused("disk_full", "MiB are free: free some space", kind=InfrastructureError):
        async with DiskRoom().held(tmp_path, 2 * free):
            pass


@pytest.mark.thorough
async def test_who_has_no_room_waits_for_the_others_in_turn(tmp_path: Path) -> None:
    room, order = DiskRoom(), []
    most = (shutil.disk_usage(tmp_path).free - SPARE) * 3 // 5
    over = {name: asyncio.Event() for name in "abc"}

    async def hold(name: str, most: int) -> None:
        async with room.held(tmp_path, most):
            order.append(name)
            await over[name].wait()

    async with asyncio.TaskGroup() as group:
        for name, wanted in (("a", most), ("b", most), ("c", 1)):
            group.create_task(hold(name, wanted))
            await asyncio.sleep(0)
        await asyncio.sleep(1.2)
        assert order == ["a"]  # and nobody overtakes one that waits
        for event in over.values():
            event.set()
    assert order == ["a", "b", "c"]
    async with room.held(tmp_path, most):  # nothing is held any more
        pass


async def test_room_is_given_back_by_those_that_fail(tmp_path: Path) -> None:
    room = DiskRoom()
    most = (shutil.disk_usage(tmp_path).free - SPARE) * 3 // 5
    for _ in range(2):
        with contextlib.suppress(ValueError):
            async with asyncio.timeout(5), room.held(tmp_path, most):
                raise ValueError


# Writes from the second sector on, 64 KiB at a time, for ever; says `.` of each on the console.
WRITER = Path(__file__).with_name("writer.S").read_text()


@pytest.fixture
def writer(tmp_path: Path) -> Callable[[int], Path]:
    """A VM's folder with a disk of so many bytes, from which a program starts that fills it."""

    def make(size: int) -> Path:
        source, linked = tmp_path / "writer.S", tmp_path / "writer"
        source.write_text(WRITER)
        how = ["-nostdlib", "-Wl,-Ttext=0x7c00,--oformat=binary", "-no-pie", "-m32"]
        argv = ["gcc", *how, "-Wl,-melf_i386", "-o", linked, source]
        subprocess.run(argv, check=True, timeout=60)
        folder = sandbox.prepare(tmp_path / "vm")
        with (folder / DISK).open("wb") as disk:
            disk.write(linked.read_bytes())
            disk.truncate(size)
        return folder

    return make


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_guest_that_writes_too_much_is_stopped(writer: Callable[[int], Path]) -> None:
    folder, most, printed = writer(256 * MIB), 24 * MIB, bytearray()
    argv = qemu_arguments(VmShape(memory=256), Probed(accelerator=Accelerator.TCG), "", "raw")
    argv = without_kernel(argv)
    async with QemuVm.running(argv, folder, printed.extend, most) as vm, asyncio.timeout(60):
        while not vm.exceeded:
            assert vm.trouble is None
            await asyncio.sleep(0.1)
        assert vm.exceeded == "the guest wrote more to its root disk than a VM may: 24 MiB"
    assert 100 < printed.count(b".") < 800
