"""What the VM manager needs of whoever runs its VMs: QEMU on this host, or a cloud.

A `Provider` is a worker's. It opens a `VmHost` for each step, on which the step's instances boot
their `Vm`s. Nothing above this knows which one it is.
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
    """A VM is gone, and not by what its guest did: another one may live."""


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """How long an instance waits for what, in seconds.

    `boot` is for a boot of which nothing is known (see `Boots`), `silence` until a guest without a
    sign of life is suspected, `reconnect` for a lost guest to answer again, `watchdog` for the
    kernel's watchdogs to report what hangs.
    """

    boot: float
    silence: float
    reconnect: float
    watchdog: float
    finish: float = 120  # for the runner to kill what it runs: twice what it allows itself
    grace: float = 2
    """For a crash to show up on the console, after something else showed."""
    quiet: float = 1
    """After so much silence on the console, a report without an end marker is complete."""
    early: float = 30
    """A program whose every run failed at once is given up then."""


@dataclass(frozen=True, slots=True)
class Drive:
    """A root disk: where it is, and its format, which QEMU shall not find out by looking.

    `most` is how many bytes what the guest writes to it may take beside it.
    """

    path: str
    format: str
    most: int = 0


@dataclass(frozen=True, slots=True)
class Boot:
    """What one VM boots: `name` is its instance's, `folder` is its own, and goes with it.

    `words` are added to the kernel's command line; `left` is how many bytes it may leave besides
    what its drive takes: console, output, dump.
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
    """What went wrong with the VM, while it goes on."""
    exceeded: str
    """Which of its limits the guest has reached, in words, by which it was stopped; else empty."""

    @property
    def console_until(self) -> float:
        """The moment (monotonic clock) up to which the console has been read."""

    @property
    def console_gap(self) -> str:
        """What of the console was lost, in words; nothing is if it is empty."""

    async def catch_up(self) -> None:
        """Return once all has been read that the guest has said by now."""

    def dial(self, limit: float) -> socket.socket:
        """Connect to the guest's SSH; blocks for `limit` seconds at most. Raises OSError."""

    async def died(self) -> InfrastructureError:
        """Wait for the VM's end, which the guest cannot bring about; return why it came."""

    async def is_idle(self) -> bool | None:
        """Return whether every CPU waits for an interrupt; None if nobody can tell."""

    @property
    def dump_memory(self) -> Callable[[int], Awaitable[None]] | None:
        """What stops the guest, and writes its memory to a file descriptor; None without it."""

    @property
    def debugger(self) -> Callable[[], socket.socket] | None:
        """What connects to the stub at which gdb can look into the guest; None without one."""


class VmHost(Protocol):
    """Where the VMs of one step run, and what their kernels are told for it."""

    @property
    def accelerator(self) -> str:
        """What runs them, by the name that results have; runs on different ones differ."""

    @property
    def limits(self) -> InstanceLimits:
        """How long what may take there."""

    @property
    def most_points(self) -> int:
        """How many breakpoints a guest can have at once."""

    @property
    def by_hand(self) -> Probed:
        """With what QEMU is started by who runs the same by hand."""

    def room(self, shape: VmShape) -> tuple[int, int]:
        """Return the cores, and the MiB of memory, that such a VM takes of this host."""

    def command_line(self, shape: VmShape, words: str) -> str:
        """Return the kernel's command line; what the shape appends comes last, and so wins."""

    def capture_command_line(self) -> str:
        """Return what a capture kernel has to be told."""

    def describe_boot(self, boot: Boot) -> str:
        """Return how this VM is started, for people."""

    def running(
        self, boot: Boot, on_console: Callable[[bytes], None]
    ) -> AbstractAsyncContextManager[Vm]:
        """Start a VM; end it with the block. Raises InfrastructureError if it does not start."""

    def instead(self) -> "VmHost | None":
        """Return where to go on after a guest that printed nothing, if that may help."""


class Provider(Protocol):
    """Runs the VMs of a worker."""

    @property
    def dumps(self) -> Collection[DumpMethod]:
        """The ways in which the memory of its guests can be saved."""

    @property
    def capacity(self) -> tuple[int, int] | None:
        """The cores and MiB that a VM can have at most; None: what this host has."""

    async def accelerator(self, cache: Path) -> str:
        """Return what a worker declares."""

    def host(self, run: StepContext, cache: Path) -> AbstractAsyncContextManager[VmHost]:
        """Make ready for a step's VMs. Raises KgymError for what they cannot do here."""

    async def close(self) -> None:
        """Release what the provider holds beyond its steps. Called once, after the last step."""
