"""A VM host whose guests behave by script: a whole reproduce step in a fraction of a second.

    guests = ScriptedVms(Guest, Crashing)      # the first VM is honest, all others crash
    result = await Reproduce(cache, provider=guests)(run)

It stands where QEMU or a cloud stands, behind `kgym_vmmanager.vm.provider`. A guest prints on its
console, answers SSH with the host key of the initrd that it was given, and is asked to run what a
real one would be asked to. What no script can show, such as that the runner survives a fork bomb,
test_instances.py tries in real VMs.
"""

import asyncio
import contextlib
import io
import itertools
import re
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kgym.api.steps import DumpMethod, VmShape
from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.guest.guest_image import READY
from kgym_vmmanager.guest.paths import PROGRAM, RUNNER, VARIER
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.provider import Boot, InstanceLimits, Vm, VmHost
from kgym_vmmanager.vm.qemu import kernel_command_line

_SUCCESS = 99  # SSH_MSG_CHANNEL_SUCCESS, RFC 4254, 5.4
CRASH = Path(__file__).with_name("crash.console").read_bytes()
CRASH_TITLE = "BUG: unable to handle kernel NULL pointer dereference in scripted_crash"
# Short enough for a test, long enough for a busy machine: what an honest guest does takes far less.
LIMITS = InstanceLimits(
    boot=20, silence=20, reconnect=20, watchdog=0.2, finish=20, grace=0.05, quiet=0.2, early=0.2
)
# For guests that are silent, or do not answer.
IMPATIENT = InstanceLimits(
    boot=2, silence=0.3, reconnect=0.5, watchdog=0.2, finish=20, grace=0.05, quiet=0.2, early=0.2
)


class OpenServer(paramiko.ServerInterface):
    """An SSH server that lets everybody in."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        """Accept any key."""
        del username, key
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Allow sessions."""
        del kind, chanid
        return paramiko.OPEN_SUCCEEDED


class Guest(OpenServer):
    """A guest that boots, runs its program again and again, and survives.

    Subclasses misbehave: each method is one thing that a guest does, on a thread of its own.
    """

    cpus_idle = True

    def __init__(self, boot: Boot, say: Callable[[bytes], None]) -> None:
        self.boot = boot
        # What was written to files, by folder.
        self.written: dict[str, bytes] = {}
        # Prints on the console.
        self.say = say
        # The VM has been ended.
        self.over = threading.Event()
        # Resets or powers off the guest, for the reason that QEMU would tell.
        self.stopped: Callable[[str], object] = print
        # Ends the VM, by no doing of the guest's.
        self.lost: Callable[[InfrastructureError], object] = print

    def boots(self) -> None:
        """Boot."""
        self.say(b"[    0.0] Linux version 6.1.0\n" + READY + b"\n")

    def answers_ssh(self) -> bool:
        """Return whether somebody listens at the SSH port."""
        return True

    def runs(self, runner: "Runner") -> None:
        """Do what the guest's runner does with the program."""
        while runner.goes_on():
            runner.ends("exit", 0)

    def varies(self, varier: "Varier", words: str) -> None:
        """Do what the engine of variants does, with the dictionary at `words`."""
        varier.obey(lambda seed, mask: 0)

    def executes(self, execprog: "Execprog") -> None:
        """Do what syz-execprog does with a file of variants."""
        execprog.obey(lambda seed, mask: 0)

    def answers(self, command: str) -> tuple[int, bytes]:
        """Return the status and the output of any other command."""
        del command
        return 0, b""

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Run the command beside the connection."""
        words = (channel, command.decode())
        threading.Thread(target=self._execute, args=words, daemon=True).start()
        return True

    def _execute(self, channel: paramiko.Channel, command: str) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.transport.wait_for_reply(channel)
            status = 0
            if command.startswith(f"{RUNNER} "):
                runner = Runner(channel, self.over)
                self.runs(runner)
                runner.sum_up()
            elif command.startswith(f"{VARIER} "):
                self.varies(Varier(channel, self.over), command.rsplit(maxsplit=1)[-1])
            elif command.startswith("mkdir "):
                self.written[command.split()[1]] = b"".join(
                    iter(lambda: channel.recv(1 << 16), b"")
                )
            elif f"exec {PROGRAM} " in command:
                programs = self.written[command.split()[1]]
                self.executes(Execprog(channel, self.over, programs.decode()))
            else:
                status, output = self.answers(command)
                channel.sendall(output)
            channel.send_exit_status(status)
            channel.close()


class _Transport(paramiko.Transport):
    """Tells when a command was confirmed: a client must not hear of its end before."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._confirmed: set[bytes] = set()
        self._news = threading.Condition()

    def wait_for_reply(self, channel: paramiko.Channel) -> None:
        """Return once the client was told that its command has begun."""
        confirmation = bytes([_SUCCESS]) + channel.remote_chanid.to_bytes(4, "big")
        with self._news:
            self._news.wait_for(lambda: confirmation in self._confirmed, 60)

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)
        with self._news:
            self._confirmed.add(data.asbytes()[:5])
            self._news.notify_all()


class Runner:
    """The guest's runner, as the host hears it (see guest/inside/run.c).

    A run takes a hundredth of a second, unless told otherwise.
    """

    def __init__(self, channel: paramiko.Channel, over: threading.Event) -> None:
        self._channel = channel
        self._over = over
        self._runs = self._quick = 0
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._begin

    def goes_on(self, pause: float = 0.01) -> bool:
        """Return, after a tick and a pause, whether the host has not ended stdin yet."""
        self._runs = max(self._runs, 1)
        self.prints(f"tick {self._runs} {self._quick}\n".encode())
        return not (self._over.wait(pause) or self._channel.eof_received or self._channel.closed)

    def ends(self, how: str, value: int, ms: int = 1500) -> None:
        """Tell that a run has ended so; the next one begins."""
        failed_at_once = ms < 1000 and (how, value) != ("exit", 0)
        self._quick += failed_at_once
        self.prints(f"end {self._runs} {how} {value} {ms}\n".encode())
        self.prints(f"tick {self._runs} {self._quick}\n".encode())
        self._runs += 1

    def sum_up(self) -> None:
        """Tell that all processes of the program are gone; a run that was cut short is no run."""
        runs = max(1, self._runs - 1)
        self.prints(f"over {runs} {self._quick}\n".encode())

    def prints(self, line: bytes) -> None:
        """Print a line of the runner's."""
        self._channel.sendall(line)

    def program_prints(self, words: bytes) -> None:
        """Pass on what the program prints."""
        self._channel.sendall_stderr(words)

    def dies(self) -> None:
        """Break the connection off, as when a program kills everything."""
        self._channel.transport.close()
        raise EOFError

    def hangs(self) -> None:
        """Do and say nothing for as long as the VM lives."""
        self._over.wait(60)
        raise EOFError


# The error of a variant's second call, by its seed and the mask of its changes. None: a crash;
# a negative number: it succeeds, and writes other data.
Behaviour = Callable[[int, int], int | None]


class Varier:
    """The engine of variants, as the host hears it (see guest/inside/vary.c).

    The program makes two calls, and every variant changes one or two of their arguments.
    """

    def __init__(self, channel: paramiko.Channel, over: threading.Event) -> None:
        self._channel = channel
        self._over = over
        self._rest = b""
        self.runs = 0

    def obey(self, behaves: Behaviour, crash: Callable[[], None] = lambda: None) -> None:
        """Obey all orders; `crash` and fall silent where the kernel crashes."""
        while order := self._line():
            match order.split():
                case ["learn"]:
                    for number in (1, 2):
                        self._asks(f"at {number} 1 1")
                    if behaves(-1, 0) is None:
                        self._crash(crash)
                    self._say("learned 2 1 1")
                case ["sweep" | "exact" | "plain" as word, first, count]:
                    for seed in range(int(first), int(first) + int(count)):
                        self.runs += 1
                        failed = behaves(seed, 0 if word == "plain" else 3)
                        if failed is None:
                            self._crash(crash)
                        self._say(f"ran {seed} {_digest(failed)} 2 {int(failed > 0)} 0")
                    self._say(f"swept {first}")
                case ["show", seed, mask]:
                    self._show(int(seed), int(mask), behaves, crash)

    def _show(self, seed: int, mask: int, behaves: Behaviour, crash: Callable[[], None]) -> None:
        for bit in (0, 1):
            if mask & 1 << bit:
                self._asks(f"change {bit} 202 1 argument-{bit} fff {seed:x}")
        self._say("call 0 257 3 0")
        failed = behaves(seed, mask & 3)
        if failed is None:
            self._crash(crash)
        result, written = -max(failed, 0), max(-failed, 0)
        self._say(f"call 0 202 {result} {written:x}")
        self._say(f"shown {seed} {_digest(failed)} 0")

    def _crash(self, crash: Callable[[], None]) -> NoReturn:
        crash()
        self._over.wait(60)
        raise EOFError

    def _asks(self, line: str) -> None:
        self._say(line)
        assert self._line() == "go"

    def _line(self) -> str:
        while b"\n" not in self._rest:
            data = self._channel.recv(4096)
            if not data:
                return ""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def _say(self, line: str) -> None:
        self._channel.sendall(f"{line}\n".encode())


def _digest(behaviour: int) -> str:
    return f"{max(behaviour, 0):016x}{max(-behaviour, 0):016x}"


class Execprog:
    """syz-execprog, as the host hears it, with variants that `syz-mutate.sh` makes."""

    def __init__(self, channel: paramiko.Channel, over: threading.Event, programs: str) -> None:
        self._channel = channel
        self._over = over
        self._programs = programs.split("executing program 0:\n")[1:]
        self.runs = 0

    def obey(
        self,
        behaves: Behaviour,
        crash: Callable[[], None] = lambda: None,
        *,
        shows_results: bool = True,
    ) -> None:
        """Run all programs; `crash` and fall silent where the kernel crashes."""
        lines = b""
        for text in self._programs:
            lines += f"2026/01/31 10:20:30 executing program 0:\n{text}".encode()
            failed: int | None = 0
            if match := re.match(r"futex\(0x(\w+), 0x(\w+)\)", text):
                first, second = (int(word, 16) for word in match.groups())
                mask = (first != 0xFFF) | (second != 0xFFF) << 1
                self.runs += 1
                failed = behaves((first if mask & 1 else second) if mask else -1, mask)
            if failed is None:
                # What it has printed last does not leave the guest.
                crash()
                self._over.wait(60)
                raise EOFError
            if shows_results:
                lines += (
                    f"2026/01/31 10:20:30 CALL 0: signal 0, coverage 0 errno {failed}\n".encode()
                )
            if len(lines) > 300 or text.startswith("nanosleep"):
                self._channel.sendall(lines)
                lines = b""
        self._channel.sendall(lines)


class Crashing(Guest):
    """A guest whose kernel crashes `after` so many seconds of the program."""

    after = 0.1
    report = CRASH

    def runs(self, runner: Runner) -> None:
        """Crash."""
        while runner.seconds < self.after and runner.goes_on():
            pass
        self.say(self.report)
        runner.hangs()


class _ScriptedVm:
    """A `Vm`."""

    console_gap = ""
    exceeded = ""
    dump_memory = None
    debugger = None

    def __init__(self, guest: Guest, host_key: paramiko.PKey) -> None:
        self.stopped = asyncio.Event()
        self.why_stopped = ""
        self.trouble: InfrastructureError | None = None
        self.guest = guest
        self._host_key = host_key
        self._transports: list[paramiko.Transport] = []
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        guest.stopped = partial(loop.call_soon_threadsafe, self._stop)
        guest.lost = partial(loop.call_soon_threadsafe, self._end.set_result)

    @property
    def console_until(self) -> float:
        return time.monotonic()

    async def catch_up(self) -> None:
        await asyncio.sleep(0)  # what the guest has said waits in the loop

    def dial(self, limit: float) -> socket.socket:
        del limit
        if self.guest.over.is_set() or not self.guest.answers_ssh():
            raise ConnectionRefusedError("nobody listens at the guest's port")
        here, there = socket.socketpair()
        self._transports.append(transport := _Transport(there))
        transport.add_server_key(self._host_key)
        transport.start_server(event=threading.Event(), server=self.guest)
        return here

    async def died(self) -> InfrastructureError:
        return await asyncio.shield(self._end)

    async def is_idle(self) -> bool | None:
        return self.guest.cpus_idle

    def close(self) -> None:
        """End the guest, and all connections to it."""
        self.guest.over.set()
        for transport in self._transports:
            transport.close()

    def _stop(self, why: str) -> None:
        self.why_stopped = why
        self.stopped.set()


class _ScriptedHost:
    """A `VmHost`."""

    accelerator = "tcg"
    most_points = 0
    by_hand = Probed(accelerator=Accelerator.TCG)

    def __init__(self, vms: "ScriptedVms") -> None:
        self.limits = vms.limits
        self._vms = vms

    def room(self, shape: VmShape) -> tuple[int, int]:
        return shape.cpus, shape.memory

    def command_line(self, shape: VmShape, words: str) -> str:
        return kernel_command_line(shape, self.by_hand, words)

    def capture_command_line(self) -> str:
        return ""

    def describe_boot(self, boot: Boot) -> str:
        return f"a scripted guest named {boot.name}"

    @asynccontextmanager
    async def running(self, boot: Boot, on_console: Callable[[bytes], None]) -> AsyncIterator[Vm]:
        loop = asyncio.get_running_loop()

        def say(data: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the test is over
                loop.call_soon_threadsafe(on_console, data)

        guest = next(self._vms.kinds)(boot, say)
        vm = _ScriptedVm(guest, await asyncio.to_thread(_host_key, boot.initrd))
        self._vms.guests.append(guest)
        threading.Thread(target=guest.boots, daemon=True).start()
        try:
            yield vm
        finally:
            await asyncio.to_thread(vm.close)

    def instead(self) -> VmHost | None:
        return None


class ScriptedVms:
    """A `Provider`: its n-th VM is the n-th of `kinds`, or the last of them.

    `guests` are those that have been started.
    """

    dumps: tuple[DumpMethod, ...] = ()
    capacity = None

    def __init__(self, *kinds: type[Guest], limits: InstanceLimits = LIMITS) -> None:
        self.kinds = itertools.chain(kinds[:-1], itertools.repeat(kinds[-1]))
        self.limits = limits
        self.guests: list[Guest] = []

    async def accelerator(self, cache: Path) -> str:
        """Return what a worker declares."""
        del cache
        return _ScriptedHost.accelerator

    @asynccontextmanager
    async def host(self, run: StepContext, cache: Path) -> AsyncIterator[VmHost]:
        """Make the host of a step."""
        del run, cache
        yield _ScriptedHost(self)


def _host_key(initrd: Path) -> paramiko.PKey:
    """Return the key of the SSH server that an initrd holds, in dropbear's format there."""
    argv = ["cpio", "--extract", "--to-stdout", "--quiet", "etc/host_key"]
    with initrd.open("rb") as archive:
        done = subprocess.run(argv, stdin=archive, capture_output=True, check=True, timeout=20)
    # Two strings, each after its length: the algorithm, and the private key before the public one.
    seed = done.stdout.partition(b"ssh-ed25519")[2][4:36]
    form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    text = Ed25519PrivateKey.from_private_bytes(seed).private_bytes(*form).decode()
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text))
