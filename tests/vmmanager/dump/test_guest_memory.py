"""Taking a dump: how often it is tried, what stops it, and what is told of it."""

import asyncio
import errno
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, DumpFailure, DumpMethod, Reproducer, ReproduceSpec, StepRef
from kgym_vmmanager.dump.guest_memory import ATTEMPTS, Dump, DumpFailed, Method, Scene
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


FULL = OSError(errno.ENOSPC, "No space left on device")
REFUSED = DumpFailed(DumpFailure.KEXEC_REFUSED, "Operation not permitted")
SIZE = len(b"a whole dump")
METHODS = {
    "taken": (Scripted(None), {}, None, 1, ""),
    "tried again": (Scripted(fleeting(), None), {}, None, 2, ""),
    "three attempts": (
        *(Scripted(*(fleeting(f"number {n}") for n in range(4))), {}),
        *(DumpFailure.QEMU, ATTEMPTS, f"number {ATTEMPTS - 1}"),
    ),
    "no second chance": (
        *(Scripted(DumpFailed(DumpFailure.SSH, "gone")), {}),
        *(DumpFailure.SSH, 1, "gone"),
    ),
    "full disk": (Scripted(FULL), {}, DumpFailure.DISK, 1, "No space left"),
    "small disk": (Scripted(), {"memory": 1 << 20}, DumpFailure.DISK, 1, "free some space"),
    "kexec refused": (Scripted(arming=REFUSED), {}, DumpFailure.KEXEC_REFUSED, 0, "not permitted"),
    "lost while arming": (
        Scripted(arming=ConnectionLost("reset")),
        {},
        DumpFailure.SSH,
        0,
        "reset",
    ),
    "no panic": (Kdump(1024, ""), {"panicked": False}, DumpFailure.NO_PANIC, 1, "did not panic"),
}


@pytest.mark.parametrize(
    ("method", "guest", "failure", "attempts", "words"), METHODS.values(), ids=METHODS
)
async def test_a_dump_is_taken_or_says_why_not(
    tmp_path: Path,
    method: Method,
    guest: dict[str, Any],
    failure: DumpFailure | None,
    attempts: int,
    words: str,
) -> None:
    dump = Dump(method, tmp_path / "dump-3")
    if isinstance(method, Scripted):
        await dump.arm(cast(Ssh, None))
    taken = await dump.take(scene(tmp_path, **guest))
    assert (taken.failure, taken.attempts) == (failure, attempts)
    assert words in taken.message
    assert (tmp_path / "dump-3.elf").exists() is (failure is None)  # no half is left
    expected = (None, 0) if failure else ("dump-3.elf", SIZE)
    assert (taken.artifact, taken.size) == expected


async def test_cancelling_ends_it_at_once(tmp_path: Path) -> None:
    class Endless(Scripted):
        async def take(self, scene: Scene, stem: Path) -> Path:
            await asyncio.sleep(600)
            return stem

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await Dump(Endless(), tmp_path / "dump").take(scene(tmp_path))


@pytest.mark.parametrize(
    ("memory", "reserved"), [(256, 64), (512, 64), (1024, 128), (2048, 256), (65536, 256)]
)
def test_the_reservation_grows_with_the_memory_up_to_a_limit(memory: int, reserved: int) -> None:
    assert reservation(memory) == reserved
    assert Kdump(memory, "").words == f"crashkernel={reserved}M"


def test_kdump_takes_a_capture_kernel_which_is_an_earlier_build(fake_build: BuildSpec) -> None:
    spec = partial(ReproduceSpec, build=StepRef(step=0), reproducer=PROGRAM)
    with pytest.raises(ValidationError, match="capture"):
        spec(dump="kdump")
    with pytest.raises(ValidationError, match="capture"):
        spec(dump="hypervisor", capture=StepRef(step=1))
    last = spec(dump="kdump", capture=StepRef(step=1))
    assert JobRequest(steps=[fake_build, fake_build, last])
    with pytest.raises(ValidationError, match="not an earlier step"):
        JobRequest(steps=[fake_build, last])
