"""The dump that a crashed guest takes of itself: the only way if the provider cannot take one.

The kernel reserves memory (`crashkernel=`) into which guest/inside/kexec.c loads a small capture
kernel; a panic starts it. It prints one line on the console, answers SSH, and sends what
makedumpfile leaves of /proc/vmcore: no free pages, no caches, no memory of programs. Without
makedumpfile, or if that does not know the kernel's structures, it sends all of the memory, packed.
"""

import asyncio
import contextlib
import shlex
import time
from pathlib import Path

from kgym import tasks
from kgym.api.steps import DumpFailure, DumpMethod
from kgym.host.quoted_words import quoted
from kgym_vmmanager.dump.guest_memory import DumpFailed, Scene, dump_bytes
from kgym_vmmanager.dump.received_dump import Filtered, Received
from kgym_vmmanager.guest.paths import ADDRESS, CAPTURE
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.vm.provider import VmLost

# Paths in the guest: the loader, the capture kernel, its initrd.
KEXEC = "/kgym/kexec"
KERNEL = "/kgym/capture-kernel"
INITRD = "/kgym/capture-initrd"

_READY = b"kgym: capture kernel ready"
_ARM_SECONDS = 60.0
_CONNECT_SECONDS = 30.0
_SILENCE_SECONDS = 60.0
_READ_SECONDS = 1.0
_POLL_SECONDS = 0.05
_REFUSALS = {3: DumpFailure.NO_RESERVATION}
# The console still shows the crash as its last report: the capture kernel must not add to it.
_QUIET = "quiet loglevel=1"
_ERROR_BYTES = 300


def reservation(memory: int) -> int:
    """Return how many MiB of a guest's `memory` to reserve, an eighth within 64 to 256."""
    # The capture kernel with its initrd takes 50 MiB; makedumpfile's bitmap grows with the memory.
    return max(64, min(256, memory // 8 // 16 * 16))


class Kdump:
    """kexec, the capture kernel and makedumpfile."""

    name: DumpMethod = "kdump"
    failure = DumpFailure.SSH

    def __init__(self, memory: int, command_line: str) -> None:
        """`memory` is the guest's in MiB, `command_line` what a capture kernel needs here."""
        self.words = f"crashkernel={reservation(memory)}M"
        self._command_line = f"{command_line} {_QUIET} nr_cpus=1 reset_devices rdinit={CAPTURE}"

    async def arm(self, ssh: Ssh) -> None:
        """Load the capture kernel, then remove its files from the guest's memory."""
        # kexec_load needs no support in the crashing kernel beyond CONFIG_KEXEC, so the kernel
        # under test need not be rebuilt. The capture kernel takes over the guest's address.
        line = f'"{self._command_line} kgym_net=$(cat {ADDRESS})"'
        load = f"{shlex.join([KEXEC, KERNEL, INITRD])} {line}"
        status, output = await ssh.run(load, limit=_ARM_SECONDS)
        if status != 0:
            failure = _REFUSALS.get(status, DumpFailure.KEXEC_REFUSED)
            raise DumpFailed(failure, quoted(output))
        await ssh.run(f"rm -f {KERNEL} {INITRD}", limit=_ARM_SECONDS)

    async def take(self, scene: Scene, stem: Path) -> Path:
        """Wait for the capture kernel and write the dump that it sends."""
        if not scene.panicked:
            message = "the kernel did not panic, which is what starts the capture kernel"
            raise DumpFailed(DumpFailure.NO_PANIC, message)
        taking = asyncio.create_task(_taken(scene, stem))
        died = asyncio.create_task(scene.vm.died())
        try:
            await asyncio.wait({taking, died}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                return taking.result()
            lost = died.result()
            if not isinstance(lost, VmLost):
                raise lost
            raise DumpFailed(DumpFailure.VM_LOST, f"{lost.reason}: {lost.message}")
        finally:
            await tasks.end((taking, died))


async def _taken(scene: Scene, stem: Path) -> Path:
    await _wait_until_ready(scene)
    try:
        async with scene.connect(_CONNECT_SECONDS) as ssh:
            return await _receive(ssh, stem, dump_bytes(scene.memory))
    except ConnectionLost as error:
        raise DumpFailed(DumpFailure.SSH, str(error), again=True) from error
    except ValueError as error:
        raise DumpFailed(DumpFailure.SSH, f"what the guest sent is no dump: {error}") from error


async def _wait_until_ready(scene: Scene) -> None:
    begin = time.monotonic()
    while not scene.console.has_seen(_READY):
        late = time.monotonic() - begin > scene.boot
        if late or scene.vm.stopped.is_set():
            what = f"it was not up after {scene.boot:g} s" if late else "the guest stopped"
            words = scene.console.last_lines()
            message = f"{what}; the last words on the console: {words}"
            raise DumpFailed(DumpFailure.CAPTURE_SILENT, message)
        await asyncio.sleep(_POLL_SECONDS)


async def _receive(ssh: Ssh, stem: Path, most: int) -> Path:
    """Let makedumpfile filter the memory; if it fails, take all of it."""
    reasons = []
    for kind in (Filtered, Received):
        with contextlib.closing(kind(stem, most)) as received:
            why = await _follow(ssh, received)
        if not why:
            return received.path
        reasons.append(why)
        received.discard()
    raise DumpFailed(DumpFailure.SSH, "; ".join(reasons), again=True)


async def _follow(ssh: Ssh, received: Received) -> str:
    """Receive the command's output to its end; return why it failed, or nothing."""
    stream = await ssh.start(received.command, _CONNECT_SECONDS)
    errors, heard, more = b"", time.monotonic(), True
    while more:
        out, err, more = await stream.read(_READ_SECONDS)
        errors = (errors + err)[-_ERROR_BYTES:]
        received.feed(out)
        if out or err:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE_SECONDS:
            raise ConnectionLost(f"nothing came for {_SILENCE_SECONDS:g} s")
    if stream.status == 0 and received.complete:
        return ""
    words = quoted(errors) or "it printed nothing"
    return f"`{received.command}` ended with status {stream.status}: {words}"
