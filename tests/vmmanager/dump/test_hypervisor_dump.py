"""QEMU's own dump, of a guest that has nothing to boot."""

import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from kgym.api.steps import DumpFailure, VmShape
from kgym.host import sandbox
from kgym_vmmanager.dump.guest_memory import Dump, Scene
from kgym_vmmanager.dump.hypervisor_dump import Hypervisor
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.ssh import Ssh
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.qemu import QemuVm, qemu_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

MEMORY = 256


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    argv = qemu_arguments(VmShape(memory=MEMORY), Probed(accelerator=Accelerator.TCG))
    for option in ("-kernel", "-initrd", "-append"):
        at = argv.index(option)
        del argv[at : at + 2]
    console = Console(tmp_path / "console.log")
    async with QemuVm.running(argv, sandbox.prepare(tmp_path / "vm"), console.feed, 0) as vm:
        connect = partial(Ssh.connected, vm.dial, "", tmp_path / "no-key")
        yield Scene(vm, console, False, MEMORY, 10, connect)
    console.close()


async def test_it_is_an_elf_core_of_the_whole_memory(scene: Scene, tmp_path: Path) -> None:
    taken = await Dump(Hypervisor(), tmp_path / "dump-0").take(scene)
    assert (taken.artifact, taken.failure, taken.attempts) == ("dump-0.elf.zst", None, 1)
    argv = ["zstd", "-dqc", tmp_path / "dump-0.elf.zst"]
    done = subprocess.run(argv, check=True, capture_output=True, timeout=60)
    assert done.stdout.startswith(b"\x7fELF\x02\x01")
    assert len(done.stdout) > MEMORY << 20


async def test_it_can_be_taken_again(scene: Scene, tmp_path: Path) -> None:
    first = await Dump(Hypervisor(), tmp_path / "dump-0").take(scene)
    second = await Dump(Hypervisor(), tmp_path / "dump-1").take(scene)
    assert (first.failure, second.failure) == (None, None)


async def test_a_file_that_cannot_be_written_is_told(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "dump-0.elf.zst").mkdir()
    taken = await Dump(Hypervisor(), tmp_path / "dump-0").take(scene)
    assert (taken.artifact, taken.failure) == (None, DumpFailure.DISK)
    assert "zstd" in taken.message


async def test_a_qemu_that_is_gone_is_told(scene: Scene, tmp_path: Path) -> None:
    scene.vm._process.kill()
    taken = await Dump(Hypervisor(), tmp_path / "dump-0").take(scene)
    assert (taken.artifact, taken.failure) == (None, DumpFailure.QEMU)
    assert not (tmp_path / "dump-0.elf.zst").exists()
