"""Taking a dump: how often it is tried, what stops it, and what is told of it."""

import asyncio
import errno
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, DumpFailure, DumpMethod, Reproducer, ReproduceSpec, StepRef
from kgym_vmmanager.dump.guest_memory import ATTEMPTS, Dump, DumpFailed, Scene
from kgym_vmmanager.dump.kdump import Kdump, reservation
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.vm.provider import Vm

pytestmark = pytest.mark.anyio

PROGRAM = Reproducer(text="int main(void) { return 0; }")


class Scripted:
    """A way of taking dumps that goes as told: an error for each attempt, None for success."""

    name: DumpMethod = "hypervisor"
    failure = DumpFailure.QEMU
    words = ""

    def __init__(self, *errors: Exception | None, arming: Exception | None = None) -> None:
        self.errors = list(errors)
        self.arming = arming

    async def arm(self, ssh: Ssh) -> None:
        if self.arming is not None:
            raise self.arming

    async def take(self, scene: Scene, stem: Path) -> Path:
        path = Path(f"{stem}.elf")
        path.write_bytes(b"half")
        if (error := self.errors.pop(0)) is not None:
            raise error
        path.write_bytes(b"a whole dump")
        return path


def scene(folder: Path, *, memory: int = 1, panicked: bool = True) -> Scene:
    def connect(limit: float) -> AbstractAsyncContextManager[Ssh]:
        return nullcontext(cast(Ssh, None))

    console = Console(folder / "console.log")
    console.close()
    return Scene(cast(Vm, None), console, panicked, memory, 60, connect)


def fleeting(message: str = "this time") -> DumpFailed:
    return DumpFailed(DumpFailure.QEMU, message, again=True)


async def test_a_dump_has_its_file_and_size(tmp_path: Path) -> None:
    taken = await Dump(Scripted(None), tmp_path / "dump-3").take(scene(tmp_path))
    assert (taken.artifact, taken.size, taken.attempts) == ("dump-3.elf", 12, 1)
    assert (taken.failure, taken.message) == (None, "")
    assert (tmp_path / "dump-3.elf").read_bytes() == b"a whole dump"


async def test_what_may_go_better_is_tried_again(tmp_path: Path) -> None:
    taken = await Dump(Scripted(fleeting(), None), tmp_path / "dump").take(scene(tmp_path))
    assert (taken.artifact, taken.attempts) == ("dump.elf", 2)


async def test_attempts_are_limited_and_the_last_reason_is_told(tmp_path: Path) -> None:
    errors = [fleeting(f"number {number}") for number in range(ATTEMPTS + 1)]
    taken = await Dump(Scripted(*errors), tmp_path / "dump").take(scene(tmp_path))
    assert (taken.attempts, taken.failure) == (ATTEMPTS, DumpFailure.QEMU)
    assert taken.message == f"number {ATTEMPTS - 1}"


async def test_half_a_dump_is_removed(tmp_path: Path) -> None:
    dump = Dump(Scripted(DumpFailed(DumpFailure.SSH, "gone")), tmp_path / "dump")
    taken = await dump.take(scene(tmp_path))
    assert (taken.artifact, taken.size, taken.attempts) == (None, 0, 1)
    assert not (tmp_path / "dump.elf").exists()


async def test_a_full_disk_is_told_and_not_tried_again(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    taken = await Dump(Scripted(full), tmp_path / "dump").take(scene(tmp_path))
    assert (taken.failure, taken.attempts) == (DumpFailure.DISK, 1)


async def test_nothing_is_written_to_a_disk_that_could_not_hold_it(tmp_path: Path) -> None:
    taken = await Dump(Scripted(), tmp_path / "dump").take(scene(tmp_path, memory=1 << 20))
    assert taken.failure is DumpFailure.DISK
    assert "free some space" in taken.message


async def test_a_guest_that_was_not_made_ready_has_no_dump(tmp_path: Path) -> None:
    refused = DumpFailed(DumpFailure.KEXEC_REFUSED, "Operation not permitted")
    dump = Dump(Scripted(arming=refused), tmp_path / "dump")
    await dump.arm(cast(Ssh, None))
    taken = await dump.take(scene(tmp_path))
    assert (taken.failure, taken.attempts) == (DumpFailure.KEXEC_REFUSED, 0)


async def test_a_connection_that_breaks_while_making_ready_is_told(tmp_path: Path) -> None:
    dump = Dump(Scripted(arming=ConnectionLost("reset")), tmp_path / "dump")
    await dump.arm(cast(Ssh, None))
    assert (await dump.take(scene(tmp_path))).failure is DumpFailure.SSH


async def test_cancelling_ends_it_at_once(tmp_path: Path) -> None:
    class Endless(Scripted):
        async def take(self, scene: Scene, stem: Path) -> Path:
            await asyncio.sleep(600)
            return stem

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await Dump(Endless(), tmp_path / "dump").take(scene(tmp_path))


async def test_without_a_panic_there_is_no_capture_kernel(tmp_path: Path) -> None:
    dump = Dump(Kdump(1024, ""), tmp_path / "dump")
    taken = await dump.take(scene(tmp_path, panicked=False))
    assert (taken.failure, taken.attempts) == (DumpFailure.NO_PANIC, 1)


@pytest.mark.parametrize(
    ("memory", "reserved"), [(256, 64), (512, 64), (1024, 128), (2048, 256), (65536, 256)]
)
def test_the_reservation_grows_with_the_memory_up_to_a_limit(memory: int, reserved: int) -> None:
    assert reservation(memory) == reserved
    assert Kdump(memory, "").words == f"crashkernel={reserved}M"


def test_kdump_and_the_capture_kernel_go_together() -> None:
    with pytest.raises(ValidationError, match="capture"):
        ReproduceSpec(build=StepRef(step=0), reproducer=PROGRAM, dump="kdump")
    with pytest.raises(ValidationError, match="capture"):
        ReproduceSpec(
            build=StepRef(step=0), reproducer=PROGRAM, dump="hypervisor", capture=StepRef(step=1)
        )


def test_the_capture_kernel_is_an_earlier_build(fake_build: BuildSpec) -> None:
    last = ReproduceSpec(
        build=StepRef(step=0), reproducer=PROGRAM, dump="kdump", capture=StepRef(step=1)
    )
    assert JobRequest(steps=[fake_build, fake_build, last])
    with pytest.raises(ValidationError, match="not an earlier one"):
        JobRequest(steps=[fake_build, last])
