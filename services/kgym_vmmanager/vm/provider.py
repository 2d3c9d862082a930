"""The protocol of VM providers: QEMU on this host, or a cloud.

A worker has one `Provider`. It opens a `VmHost` for each step, on which the step's instances boot
their `Vm`s. Code above this does not depend on which provider it is. What a VM cannot do (a
debugger's stub, a dump from outside, telling whether CPUs are idle) is None, never a guess.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kgym.api.steps import DumpMethod, VmShape
from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.vm.accelerator import Probed


class VmLost(InfrastructureError):
    """A VM is gone through no fault of its guest: another one may live."""


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """Time limits of an instance in seconds.

    `boot` applies if no boot was measured (see `Boots`); after `silence`, a guest without a sign of
    life is suspected; `reconnect` is for a lost guest to answer again, `watchdog` for the kernel's
    watchdogs to report a hang.
    """

    boot: float
    silence: float
    reconnect: float
    watchdog: float
    finish: float = 120  # for the runner to kill its processes: twice its own limit
    grace: float = 2
    """Time for a crash's report to reach the console, after another sign of the crash."""
    quiet: float = 1
    """Silence on the console after which a report without an end marker is complete."""
    early: float = 30
    """After this, a program whose every run failed at once is given up."""


@dataclass(frozen=True, slots=True)
class Drive:
    """A root disk: its path and format; the guest's writes may take `most` bytes beside it."""

    # The format is stated, never probed: a guest could write another format's header to a raw disk
    # and have QEMU open any file that this names.

    path: str
    format: str
    most: int = 0


@dataclass(frozen=True, slots=True)
class Boot:
    """What one VM boots.

    `name` is its instance's; `folder` is removed with the VM. `words` are added to the kernel's
    command line; `left` is how many bytes of console, output and dump it may leave besides its
    drive's.
    """

    name: str
    folder: Path
    kernel: Path
    initrd: Path
    shape: VmShape
    words: str = ""
    disk: Drive | None = None
    left: int = 0


class Vm(Protocol):
    """A running VM."""

    stopped: asyncio.Event
    """Set when the guest has reset or powered off."""
    why_stopped: str
    trouble: InfrastructureError | None
    """A failure of the VM's host while the VM goes on."""
    exceeded: str
    """The limit that the guest has exceeded, in words, and that stopped it; else empty."""

    @property
    def console_until(self) -> float:
        """The moment (monotonic clock) up to which the console has been read."""

    @property
    def console_gap(self) -> str:
        """Which part of the console was lost, in words; empty if none was."""

    async def catch_up(self) -> None:
        """Return once everything that the guest has printed until now has been read."""

    def dial(self, limit: float) -> socket.socket:
        """Connect to the guest's SSH; blocks for `limit` seconds at most. Raises OSError."""

    async def died(self) -> InfrastructureError:
        """Wait for an end of the VM that its guest did not cause; return the reason."""

    async def is_idle(self) -> bool | None:
        """Return whether every CPU waits for an interrupt; None if that cannot be determined."""

    @property
    def dump_memory(self) -> Callable[[int], Awaitable[None]] | None:
        """Stops the guest and writes its memory to a file descriptor; None if unsupported."""

    @property
    def debugger(self) -> Callable[[], socket.socket] | None:
        """Connects to a gdb stub for the guest; None if there is none."""


class VmHost(Protocol):
    """Where the VMs of one step run, and what their kernels need there."""

    @property
    def accelerator(self) -> str:
        """The accelerator's name in results; runs on different ones are never compared."""

    @property
    def limits(self) -> InstanceLimits:
        """The time limits there."""

    @property
    def most_points(self) -> int:
        """Number of breakpoints that a guest can have at once."""

    @property
    def by_hand(self) -> Probed:
        """The accelerator with which people run the bundle by hand."""

    def room(self, shape: VmShape) -> tuple[int, int]:
        """Return the cores and MiB of this host that such a VM takes."""

    def command_line(self, shape: VmShape, words: str) -> str:
        """Return the kernel's command line; the shape's own words come last, and so win."""

    def capture_command_line(self) -> str:
        """Return the command line that a capture kernel needs."""

    def describe_boot(self, boot: Boot) -> str:
        """Return how this VM is started, for people to read."""

    def running(
        self, boot: Boot, on_console: Callable[[bytes], None]
    ) -> AbstractAsyncContextManager[Vm]:
        """Start a VM; end it with the block. Raises InfrastructureError if it does not start."""

    def instead(self) -> "VmHost | None":
        """Return a slower host to try after a guest that printed nothing, if there is one."""


class Provider(Protocol):
    """Runs the VMs of a worker."""

    @property
    def dumps(self) -> Collection[DumpMethod]:
        """The dump methods that its guests support."""

    @property
    def capacity(self) -> tuple[int, int] | None:
        """The most cores and MiB that a VM can have; None: those of this host."""

    async def accelerator(self, cache: Path) -> str:
        """Return the accelerator that a worker declares."""

    def host(self, run: StepContext, cache: Path) -> AbstractAsyncContextManager[VmHost]:
        """Prepare for a step's VMs. Raises KgymError for what the provider cannot do."""

    async def close(self) -> None:
        """Release what the provider holds beyond its steps. Called once, after the last step."""
