"""A running VM in the cloud: its console is polled; if it disappears, the reason is looked up."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kgym import tasks
from kgym.errors import InfrastructureError
from kgym.host.quoted_words import quoted
from kgym_vmmanager.cloud.zones import Place
from kgym_vmmanager.gce.boot_disk import BEGINS
from kgym_vmmanager.gce.calls import Compute, Gone, NotReady
from kgym_vmmanager.vm.provider import VmLost

# Interval between reads of one console; the rate gate that all VMs share can make it longer. It is
# the only call that a running VM costs: its state is asked for only if the console cannot be read.
_POLL_SECONDS = 0.5
_CATCH_UP_SECONDS = 120.0
# Time until the service lists the operation that ended a VM.
_KNOWN_SECONDS = 5.0
_BEGINS = BEGINS.encode()
_STARTS = b"kgym: helper starts the kernel"
# Lines of the helper and its kernel, up to the line with _STARTS.
_HELPER_LINES = 1000
# Lines after _STARTS that may still be the helper's. Later ones are the tested kernel's, which
# could otherwise imitate the helper.
_HANDED_ON_LINES = 20
_FAILED = b"kgym: helper failed: "
_REFUSED = b"kgym: helper refused: "
_LOSSES = {
    "compute.instances.preempted": ("vm_preempted", "the cloud took the VM back"),
    "compute.instances.hostError": ("vm_host_error", "the machine below the VM failed"),
}
_ENDED_BY_GUEST = "compute.instances.guestTerminate"


class GceVm:
    """A `Vm`; use `GceVm.followed`."""

    dump_memory = None
    debugger = None
    trouble: InfrastructureError | None = None
    exceeded = ""
    refused = False
    """Whether the helper could not start the kernel, which then gets an image of its own."""

    def __init__(
        self,
        compute: Compute,
        place: Place,
        name: str,
        number: int,
        address: tuple[str, int],
        on_console: Callable[[bytes], None],
        *,
        helped: bool = False,
    ) -> None:
        """`number` is the service's id of it; `helped` is whether it boots the helper."""
        self.stopped = asyncio.Event()
        self.why_stopped = ""
        self.console_until = time.monotonic()
        self.console_gap = ""
        self._compute = compute
        self._place = place
        self._name = name
        self._number = number
        self._address = address
        self._on_console = on_console
        self._lost: asyncio.Future[InfrastructureError] = asyncio.get_running_loop().create_future()
        self._polled = asyncio.Condition()
        self._next = 0
        self._line = b""
        self._begun = 0
        self._helper_lines = _HELPER_LINES if helped else 0

    @asynccontextmanager
    async def followed(self) -> AsyncIterator["GceVm"]:
        """Follow the console while the context lasts."""
        following = asyncio.create_task(self._follow())
        following.add_done_callback(self._ended)
        try:
            yield self
        finally:
            await tasks.end([following])

    async def catch_up(self) -> None:
        """Wait for a read of the console that starts after now; raises the error of a lost VM."""
        moment = time.monotonic()
        async with self._polled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CATCH_UP_SECONDS):
                    await self._polled.wait_for(
                        lambda: self.console_until >= moment or self._lost.done()
                    )
        if self._lost.done():
            raise self._lost.result()
        if self.console_until >= moment:
            return
        raise VmLost("console_lost", f"the console cannot be read for {_CATCH_UP_SECONDS:g} s")

    def dial(self, limit: float) -> socket.socket:
        """Connect to the guest's SSH."""
        link = socket.create_connection(self._address, limit)
        link.setblocking(True)
        return link

    async def died(self) -> InfrastructureError:
        """Wait for an end of the VM that its guest did not cause; return the reason."""
        return await asyncio.shield(self._lost)

    async def is_idle(self) -> None:
        """Return None: the service does not say whether CPUs are idle."""

    async def _follow(self) -> None:
        while not self._lost.done() and not self.stopped.is_set():
            begin = time.monotonic()
            try:
                chunk = await self._compute.serial_port(self._place.zone, self._name, self._next)
            except (Gone, NotReady):
                await self._explain()
            except InfrastructureError as error:
                self._lost.set_result(VmLost("console_lost", f"{error.reason}: {error.message}"))
            else:
                if chunk.start > self._next:
                    self.console_gap = f"{chunk.start - self._next} bytes from byte {self._next} on"
                self._next = chunk.next
                self.take(chunk.data)
                self.console_until = begin
            async with self._polled:
                if self.stopped.is_set():
                    self.console_until = float("inf")
                self._polled.notify_all()
            await asyncio.sleep(_POLL_SECONDS)

    def take(self, data: bytes) -> None:
        """Pass on console output, up to the point where the machine has reset."""
        whole, has_line, rest = (self._line + data).rpartition(b"\n")
        self._line = rest[-1000:] if has_line else (self._line + data)[-1000:]
        for line in whole.split(b"\n"):
            self._begun += _BEGINS in line
            if self._begun > 1:
                self.why_stopped = "guest-reset"
                self.stopped.set()
                data = data.rpartition(_BEGINS)[0]
                break
            if self._helper_lines > 0:
                self._hear(line)
        self._on_console(data)

    def _hear(self, line: bytes) -> None:
        """Handle a line that may be the helper's."""
        self._helper_lines -= 1
        if _STARTS in line:
            self._helper_lines = _HANDED_ON_LINES
        if _FAILED in line:
            why = quoted(line.partition(_FAILED)[2])
            self.trouble = InfrastructureError("helper_failed", f"in the VM: {why}")
        if _REFUSED in line:
            why = quoted(line.partition(_REFUSED)[2])
            self.refused = True
            message = f"the helper cannot start this kernel: {why}"
            self.trouble = VmLost("helper_refused", message)

    def _ended(self, following: "asyncio.Task[None]") -> None:
        """Treat any unexpected end of the polling as a lost console."""
        error = None if following.cancelled() else following.exception()
        if error is not None and not self._lost.done():
            self._lost.set_result(VmLost("console_lost", f"{type(error).__name__}: {error}"))

    async def _explain(self) -> None:
        """Look up why the VM no longer exists or runs."""
        begin = time.monotonic()
        with contextlib.suppress(InfrastructureError):
            while True:
                kinds = await self._compute.what_happened(self._place.zone, self._number)
                for kind in kinds & set(_LOSSES):
                    reason, words = _LOSSES[kind]
                    self._lost.set_result(VmLost(reason, f"{words}: {self._name}"))
                    return
                if _ENDED_BY_GUEST in kinds:
                    self.why_stopped = "guest-shutdown"
                    self.stopped.set()
                    return
                if time.monotonic() - begin > _KNOWN_SECONDS:
                    break
                await asyncio.sleep(1)
        message = f"the VM {self._name} is gone, and the service does not say why"
        self._lost.set_result(VmLost("vm_vanished", message))
