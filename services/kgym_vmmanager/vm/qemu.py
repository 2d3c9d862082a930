"""One QEMU process: its command line, its console, its monitor, its end."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from qemu.qmp import EventListener, QMPClient, QMPError

from kgym.api.steps import VmShape, on_disk
from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym_vmmanager.vm.accelerator import QEMU, Accelerator, Probed
from kgym_vmmanager.vm.provider import Drive
from kgym_vmmanager.vm.qemu_jail import MOST_FILE, Confined, confined

# The VM's folder as the confined QEMU sees it. It holds `kernel`, `initrd` and the files below.
FOLDER = "/vm"
DISK = "disk"  # the root disk, if there is one
STUB = "stub"  # the socket of QEMU's gdb stub

_START_SECONDS = 30.0
_MONITOR_SECONDS = 10.0
# A QEMU whose monitor connection broke gets this long to end: then its own message explains the
# failure.
_DYING_SECONDS = 2.0
_PIPE_SECONDS = 0.05
_OUTPUT_BYTES = 1000
_IDLE_SAMPLES = 20

# A crash halts the guest: its report stays the last thing on the console, and its memory is as the
# crash left it for a dump.
_PANIC = "panic_on_warn=1 oops=panic kasan.fault=panic panic=0"
# Programs cannot write to the kernel's log: a report in it is the kernel's, not a forgery.
_MUTE = "printk.devkmsg=off"
# Emulated CPUs look stuck to watchdogs whose limits (seconds) are made for real ones.
_SLOW = (
    "watchdog_thresh=60 workqueue.watchdog_thresh=140"
    " rcupdate.rcu_cpu_stall_timeout=100 rcupdate.rcu_exp_cpu_stall_timeout=100000"
)

logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)  # it logs each lost connection


def kernel_command_line(shape: VmShape, probed: Probed, first: str = "") -> str:
    """Return the kernel's command line; the shape's own words come last, and so win."""
    words = kernel_words(shape, probed, first)
    if shape.cpus == 1:
        words.append("acpi=off")  # measured: the boot takes 2.8 s instead of 9.4 s under TCG
    return " ".join([*words, *shape.append.split()])


def kernel_words(shape: VmShape, probed: Probed, first: str = "") -> list[str]:
    """Return the words of the command line that hold on any machine."""
    words = ["console=ttyS0", *first.split(), _PANIC, _MUTE, "nokaslr", "net.ifnames=0"]
    if on_disk(shape.root):
        words.append("kgym_root=disk")
    if probed.accelerator is Accelerator.TCG:
        words += [_SLOW, *_clock(probed)]
    return words


def capture_command_line(probed: Probed) -> str:
    """Return the command line that a capture kernel needs in such a VM."""
    return " ".join(["console=ttyS0", "panic=0", "net.ifnames=0", *_clock(probed)])


def _clock(probed: Probed) -> Iterator[str]:
    """Yield the words that set an emulated guest's clocks right."""
    if probed.accelerator is not Accelerator.TCG:
        return
    # On a busy host, the guest's own measurements are wrong. Late ticks look like a dead timer, and
    # "IO-APIC + timer doesn't work!" ends the boot; a TSC rate that is measured too low makes the
    # guest's clock fast.
    yield "no_timer_check"
    if probed.tsc_khz:
        yield f"tsc=reliable tsc_early_khz={probed.tsc_khz}"


def qemu_arguments(
    shape: VmShape, probed: Probed, first: str = "", disk_format: str | None = None
) -> list[str]:
    """Return QEMU's command line for a VM whose folder is mounted on FOLDER.

    `first` are the first words of the kernel's command line; `disk_format` is the root disk's, if
    there is one. The guest's network reaches nothing. Its port 22 is forwarded from a port on
    QEMU's own loopback, which the kernel chooses. A guest that resets is stopped.
    """
    drive = Drive(f"{FOLDER}/{DISK}", disk_format) if disk_format else None
    return [
        *_machine(shape, probed.accelerator.arguments, f"{FOLDER}/kernel", f"{FOLDER}/initrd"),
        *_disk(drive),
        *("-append", kernel_command_line(shape, probed, first)),
        *("-no-shutdown", "-chardev", "stdio,id=console,signal=off"),
        *("-chardev", f"socket,id=monitor,path={FOLDER}/monitor,server=on,wait=off"),
        *("-mon", "chardev=monitor,mode=control"),
        # The stub costs nothing until a debugger connects.
        *("-chardev", f"socket,id=stub,path={FOLDER}/{STUB},server=on,wait=off"),
        *("-gdb", "chardev:stub"),
    ]


def arguments_by_hand(
    shape: VmShape, probed: Probed, kernel: str, initrd: str, drive: Drive | None = None
) -> list[str]:
    """Return the command line of the same VM for people, with the console on the terminal.

    The guest runs the reproducer by itself. Ctrl-C ends QEMU.
    """
    return [
        *_machine(shape, probed.accelerator.elsewhere, kernel, initrd),
        *_disk(drive),
        *("-append", kernel_command_line(shape, probed, "kgym.autorun")),
        *("-chardev", "stdio,id=console,signal=on"),
    ]


def _machine(shape: VmShape, accelerator: list[str], kernel: str, initrd: str) -> Iterator[str]:
    yield from (QEMU, "-no-user-config", "-nodefaults", "-nographic", "-display", "none")
    # Under TCG, `pc` loses 6 s of its boot to ACPI's interrupt links (measured), so a single CPU
    # boots without ACPI; more CPUs come up only with ACPI, which is fast on `q35`.
    yield from ("-machine", "pc" if shape.cpus == 1 else "q35", "-no-reboot")
    yield "-sandbox"
    yield "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    yield from (*accelerator, "-smp", str(shape.cpus), "-m", str(shape.memory))
    yield from ("-kernel", kernel, "-initrd", initrd, "-serial", "chardev:console")
    yield from ("-netdev", "user,id=net,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:0-:22")
    yield from ("-device", "virtio-net-pci,netdev=net,romfile=")
    yield from ("-device", "virtio-rng-pci", "-device", "vmcoreinfo")


def _disk(drive: Drive | None) -> Iterator[str]:
    """Yield the options of the root disk, whose writes go to a temporary file of QEMU's."""
    if drive is None:
        return
    # `backing: None`: an image that names another file as its base never gets it. `werror=stop`: an
    # I/O error of the host stops the guest, as it must not look like an error of the kernel.
    image: dict[str, object] = {"driver": drive.format}
    image |= {"backing": None} if drive.format == "qcow2" else {}
    image |= {"file": {"driver": "file", "filename": drive.path}}
    options = "if=none,id=root,snapshot=on,werror=stop,rerror=stop"
    yield from ("-drive", f"file=json:{json.dumps(image).replace(',', ',,')},{options}")
    yield from ("-device", "virtio-blk-pci,drive=root")


class QemuVm:
    """A running QEMU: a `Vm`."""

    console_gap = ""

    def __init__(self, jail: Confined, folder: Path, most_written: int) -> None:
        self.stopped = asyncio.Event()
        self.why_stopped = ""
        self.trouble: InfrastructureError | None = None
        self.exceeded = ""
        self._most_written = most_written
        self._port = 0
        self._folder = folder
        self._jail = jail
        self._process = jail.process
        self._monitor = QMPClient("vm")
        self._last_output = b""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, argv: list[str], folder: Path, on_console: Callable[[bytes], None], most_written: int
    ) -> "AsyncIterator[QemuVm]":
        """Start QEMU with the arguments of `qemu_arguments`; kill it at the end of the block.

        The guest's writes to its disk may take `most_written` bytes of the host's. Raises
        InfrastructureError if QEMU does not start.
        """
        async with confined(argv, folder, FOLDER, max(most_written, MOST_FILE)) as jail:
            vm = cls(jail, folder, most_written)
            console = asyncio.create_task(vm._read_console(on_console))
            events: asyncio.Task[None] | None = None
            try:
                await vm._open_monitor(folder)
                events = asyncio.create_task(vm._obey_events())
                yield vm
            finally:
                await proc.kill(vm._process)
                await asyncio.wait({console}, timeout=1)  # to the end of the pipe, which closes it
                for task in filter(None, (console, events)):
                    task.cancel()
                await asyncio.gather(*filter(None, (console, events)), return_exceptions=True)
                with contextlib.suppress(QMPError, OSError, EOFError, TimeoutError):
                    async with asyncio.timeout(1):
                        await vm._monitor.disconnect()

    @property
    def console_until(self) -> float:
        """The present: the console is a pipe, and is read at once."""
        return time.monotonic()

    async def catch_up(self) -> None:
        """Leave time for the bytes in the pipe."""
        await asyncio.sleep(_PIPE_SECONDS)

    def debugger(self) -> socket.socket:
        """Connect to QEMU's gdb stub."""
        return connected(self._folder / STUB)

    def dial(self, limit: float) -> socket.socket:
        """Connect to the guest's SSH; blocks for `limit` seconds at most. Raises OSError."""
        return self._jail.connect(self._port, limit)

    async def died(self) -> InfrastructureError:
        """Wait for the process to end, which is always a failure; return it with QEMU's output."""
        status = await self._process.wait()
        output = " ".join(self._last_output.decode(errors="replace").split())
        return InfrastructureError(
            "qemu_died", f"QEMU ended with status {status}: {output}", status=status
        )

    async def is_idle(self) -> bool:
        """Return whether every CPU of the guest is seen waiting for an interrupt within 2 s."""
        # Even an idle CPU runs at times, so each is sampled until it was seen halted once.
        halted: set[int] = set()
        for _ in range(_IDLE_SAMPLES):
            states = re.findall(r"HLT=([01])", await self._command("info registers -a"))
            halted.update(cpu for cpu, state in enumerate(states) if state == "1")
            if len(halted) == len(states):
                return True
            await asyncio.sleep(2 / _IDLE_SAMPLES)
        return False

    async def dump_memory(self, sink: int) -> None:
        """Stop the guest for good and write its memory to a file descriptor, as an ELF core.

        Raises QMPError.
        """
        await self._monitor.execute("stop")
        self._monitor.send_fd_scm(sink)
        await self._monitor.execute("getfd", {"fdname": "dump"})
        how: dict[str, object] = {"paging": False, "protocol": "fd:dump"}
        await self._monitor.execute("dump-guest-memory", how)

    async def _read_console(self, on_console: Callable[[bytes], None]) -> None:
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(1 << 16):
            self._last_output = (self._last_output + chunk)[-_OUTPUT_BYTES:]
            on_console(chunk)

    async def _open_monitor(self, folder: Path) -> None:
        connected = asyncio.create_task(self._connect(folder))
        died = asyncio.create_task(self.died())
        try:
            await asyncio.wait(
                {connected, died}, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if died.done():
                raise died.result()
            if not connected.done():
                raise InfrastructureError(
                    "qemu_silent", f"QEMU's monitor did not answer within {_START_SECONDS:g} s"
                )
            if connected.exception() is not None:
                # QEMU may have died while connecting; then its output explains the failure.
                await asyncio.wait({died}, timeout=_DYING_SECONDS)
                if died.done():
                    raise died.result()
            connected.result()
        except (QMPError, OSError, EOFError, TimeoutError) as error:
            raise InfrastructureError(
                "qemu_silent", f"QEMU's monitor does not answer: {error or type(error).__name__}"
            ) from error
        finally:
            if not connected.done():
                # The QMP client leaks its socket if it is cancelled while connecting; once QEMU is
                # gone it gives up by itself.
                await proc.kill(self._process)
                await asyncio.wait({connected}, timeout=1)
            for task in (connected, died):
                task.cancel()
            await asyncio.gather(connected, died, return_exceptions=True)

    async def _connect(self, folder: Path) -> None:
        while True:
            try:
                link = connected(folder / "monitor")
                break
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.05)
        await self._monitor.connect(link)
        usernet = await self._command("info usernet")
        match = re.search(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", usernet)
        if match is None:
            raise InfrastructureError("no_port", f"QEMU forwards no port: {usernet}")
        self._port = int(match[1])

    async def _command(self, line: str) -> str:
        async with asyncio.timeout(_MONITOR_SECONDS):
            answer = await self._monitor.execute("human-monitor-command", {"command-line": line})
        return str(answer)

    async def _obey_events(self) -> None:
        listener = EventListener(("SHUTDOWN", "BLOCK_IO_ERROR"))
        with self._monitor.listen(listener):
            async for event in listener:
                data = event.get("data")
                if event.get("event") == "BLOCK_IO_ERROR":
                    why = str(data.get("reason")) if isinstance(data, dict) else ""
                    self._disk_failed(why)
                    continue
                self.why_stopped = str(data.get("reason")) if isinstance(data, dict) else ""
                if self.why_stopped == "host-signal":  # not the guest's doing
                    self.trouble = InfrastructureError("qemu_died", "a signal has ended QEMU")
                self.stopped.set()

    def _disk_failed(self, why: str) -> None:
        """Handle the error, in the C library's words, for which QEMU has stopped the guest."""
        # EFBIG is the file limit of the jail: the guest wrote too much, and its run proves nothing.
        if why == os.strerror(errno.EFBIG):
            most = f"{self._most_written >> 20:,} MiB"
            self.exceeded = f"the guest wrote more to its root disk than a VM may: {most}"
        else:
            self.trouble = InfrastructureError(
                "disk_failed", f"the root disk cannot be read or written here: {why[:200]}"
            )


def connected(path: Path) -> socket.socket:
    """Connect to a Unix socket whose path may exceed the 107 bytes of an address."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        link.close()
        raise
    finally:
        os.close(folder)
    link.setblocking(False)
    return link
