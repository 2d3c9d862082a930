"""A real kernel, run until its console says something, and dumped by the hypervisor."""

import asyncio
import os
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kgym.api.jobs import JobRequest
from kgym.api.steps import StepSpec, VmShape
from kgym.bugs import bundle
from kgym.host import sandbox
from kgym_vmmanager.dump.guest_memory import Dump, Scene
from kgym_vmmanager.dump.hypervisor_dump import Hypervisor
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.guest_image import guest_image
from kgym_vmmanager.guest.ssh import Ssh
from kgym_vmmanager.vm.accelerator import best_accelerator
from kgym_vmmanager.vm.qemu import QemuVm, qemu_arguments
from tests.conftest import fetched, kgym

INIT = Path(__file__).with_name("machine_init.sh").read_text()
FILE = "kernel/watch_queue.c"


def submitted(*steps: StepSpec) -> dict[str, Any]:
    """Run a job of these steps; return it once it has succeeded."""
    _, job = kgym("job", "submit", "-", "--wait", stdin=JobRequest(steps=list(steps)))
    assert job["state"] == "succeeded", job
    return job


class Guest(NamedTuple):
    """What is left of a guest."""

    dump: Path
    console: str


def traced_kernel(folder: Path) -> None:
    """Build the kernel of the first shipped bug with records in the file that has it.

    Leaves `kernel`, `vmlinux` and `program`, its reproducer, in the folder.
    """
    bug = bundle.load("watch-queue-filter")
    build = bug.build.model_copy(update={"instrument": [FILE]})
    job = submitted(build)
    fetched(job, 0, "bzImage", folder).rename(folder / "kernel")
    fetched(job, 0, "vmlinux", folder)
    argv = ["gcc", "-static", "-x", "c", "-", "-o", folder / "program"]
    repro = next(iter(bug.reproducers)).text
    subprocess.run(argv, input=repro, text=True, check=True, timeout=60)


def crash_and_dump(work: Path, cache: Path, *, script: str, shape: VmShape) -> Guest:
    """Boot `kernel` of the folder, run the script until the kernel panics, and dump it.

    The script stands in tracefs, and `program` of the folder is /program.
    """
    return asyncio.run(_crash_and_dump(work, cache, script, shape))


async def _crash_and_dump(work: Path, cache: Path, script: str, shape: VmShape) -> Guest:
    image, probed = await guest_image(cache), await best_accelerator(cache)
    extra = cpio.archive(
        [
            cpio.file("program", (work / "program").read_bytes(), 0o755),
            cpio.file("start", INIT.format(script=script).encode(), 0o755),
        ]
    )
    folder = sandbox.prepare(work / "vm")
    (folder / "initrd").write_bytes(image.initrd.read_bytes() + extra)
    os.link(work / "kernel", folder / "kernel")
    console = Console(work / "console.log")
    argv = qemu_arguments(shape, probed, "rdinit=/start")
    async with QemuVm.running(argv, folder, console.feed, 0) as vm:
        begin = time.monotonic()
        while not console.watch.complete:
            assert time.monotonic() - begin < 300, console.last_lines(20)
            await asyncio.sleep(0.1)
        connect = partial(Ssh.connected, vm.dial, image.host_key, image.client_key)
        scene = Scene(vm, console, True, shape.memory, 60, connect)
        taken = await Dump(Hypervisor(), work / "dump").take(scene)
    console.close()
    assert taken.failure is None, taken
    dump = work / "dump.elf"
    subprocess.run(["zstd", "-dq", "--rm", f"{dump}.zst"], check=True, timeout=120)
    return Guest(dump, (work / "console.log").read_text(errors="replace"))
