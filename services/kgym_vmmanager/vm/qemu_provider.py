"""VMs on this host: each a confined QEMU."""

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kgym.api.steps import DumpMethod, VmShape
from kgym.host import sandbox
from kgym.worker.context import StepContext
from kgym_vmmanager.vm.accelerator import Accelerator, Probed, best_accelerator
from kgym_vmmanager.vm.disk_room import DiskRoom
from kgym_vmmanager.vm.provider import Boot, InstanceLimits, Vm, VmHost
from kgym_vmmanager.vm.qemu import (
    DISK,
    QemuVm,
    capture_command_line,
    kernel_command_line,
    qemu_arguments,
)

# Memory of QEMU beyond the guest's: mostly translated code, which is bounded at 256 MiB.
OVERHEAD_MIB = 384
# The slowest watchdog is the hung task detector: two periods of 120 s.
LIMITS = {
    Accelerator.KVM: InstanceLimits(boot=60, silence=20, reconnect=20, watchdog=250),
    Accelerator.TCG: InstanceLimits(boot=180, silence=45, reconnect=45, watchdog=250),
}
# Breakpoints: under KVM they take debug registers, of which x86 has four.
_POINTS = {Accelerator.KVM: 4, Accelerator.TCG: 1000}


class Qemu:
    """The default provider: confined QEMUs on this host."""

    dumps: tuple[DumpMethod, ...] = ("hypervisor", "kdump")
    capacity = None

    def __init__(self, limits: Mapping[Accelerator, InstanceLimits] = LIMITS) -> None:
        self._limits = limits
        self._room = DiskRoom()

    async def accelerator(self, cache: Path) -> str:
        """Return the fastest that works here; the first call takes up to 10 s."""
        return (await best_accelerator(cache)).accelerator

    @asynccontextmanager
    async def host(self, run: StepContext, cache: Path) -> AsyncIterator[VmHost]:
        """Choose the accelerator."""
        probed = await best_accelerator(cache)
        why = f" ({probed.reason})" * bool(probed.reason)
        run.log(f"accelerator: {probed.accelerator}{why}")
        yield QemuHost(probed, self._limits, self._room)

    async def close(self) -> None:
        """Do nothing: every VM ends with its step."""


class QemuHost:
    """This host, with one accelerator: a `VmHost`."""

    def __init__(
        self, probed: Probed, limits: Mapping[Accelerator, InstanceLimits], room: DiskRoom
    ) -> None:
        self.by_hand = probed
        self.accelerator = str(probed.accelerator)
        self.limits = limits[probed.accelerator]
        self.most_points = _POINTS[probed.accelerator]
        self._all_limits = limits
        self._room = room

    def room(self, shape: VmShape) -> tuple[int, int]:
        """Return the guest's cores, and its memory with QEMU's overhead."""
        return shape.cpus, shape.memory + OVERHEAD_MIB

    def command_line(self, shape: VmShape, words: str) -> str:
        """Return the kernel's command line."""
        return kernel_command_line(shape, self.by_hand, words)

    def capture_command_line(self) -> str:
        """Return the command line that a capture kernel needs."""
        return capture_command_line(self.by_hand)

    def describe_boot(self, boot: Boot) -> str:
        """Return QEMU's command line."""
        return shlex.join(self._argv(boot))

    @asynccontextmanager
    async def running(self, boot: Boot, on_console: Callable[[bytes], None]) -> AsyncIterator[Vm]:
        """Start QEMU in the boot's folder once there is disk space for all that it may write."""
        most = boot.disk.most if boot.disk else 0
        async with self._room.held(boot.folder.parent, most + boot.left):
            try:
                await asyncio.to_thread(_furnish, boot)
                argv = self._argv(boot)
                async with QemuVm.running(argv, boot.folder, on_console, most) as vm:
                    yield vm
            finally:
                sandbox.remove(boot.folder)

    def instead(self) -> "QemuHost | None":
        """Return this host with TCG if it uses KVM."""
        if self.by_hand.accelerator is Accelerator.TCG:
            return None
        slower = self.by_hand.model_copy(update={"accelerator": Accelerator.TCG})
        return QemuHost(slower, self._all_limits, self._room)

    def _argv(self, boot: Boot) -> list[str]:
        disk_format = boot.disk.format if boot.disk else None
        return qemu_arguments(boot.shape, self.by_hand, boot.words, disk_format)


def _furnish(boot: Boot) -> None:
    """Make the VM's folder, with links to the files that it boots."""
    sandbox.prepare(boot.folder)
    files = {"kernel": boot.kernel, "initrd": boot.initrd}
    if boot.disk is not None:  # in the step's folder, so that it is a link
        files[DISK] = Path(boot.disk.path)
    for name, source in files.items():
        try:
            os.link(source, boot.folder / name)
        except OSError:  # on another file system
            shutil.copyfile(source, boot.folder / name)
