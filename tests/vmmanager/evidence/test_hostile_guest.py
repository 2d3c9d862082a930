"""A guest that says anything: every session ends, in its time, in one of the known ways."""

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kgym.api.steps import ControlName, ControlOutcome, InstanceOutcome
from kgym.bugs.detectors import Detectors
from kgym.bugs.run_ends import CONVENTION
from kgym_vmmanager.evidence.control_set import shares
from kgym_vmmanager.evidence.controls import Controls
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.runner_log import RunnerLog
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.reproduce.instance_plan import RunTime
from kgym_vmmanager.reproduce.reproducer_run import Session
from kgym_vmmanager.vm.instance_ending import InstanceEnded, InstanceEnding
from kgym_vmmanager.vm.provider import InstanceLimits
from tests.conftest import SEED
from tests.vmmanager.scripted_vms import OpenServer

pytestmark = pytest.mark.anyio

LIMITS = InstanceLimits(boot=5, silence=0.5, reconnect=1.5, watchdog=0.5, finish=1)
# For a guest that is honest, on a host that may be busy.
PATIENT = InstanceLimits(boot=60, silence=60, reconnect=60, watchdog=60, finish=60)
WANTED = 0.5
LONGEST = WANTED + LIMITS.silence + LIMITS.reconnect + LIMITS.watchdog + LIMITS.finish
WORDS = ["tick", "end", "ends", "over", "failed", "stuck", "exit", "signal", "killed", "0", "1"]
NUMBERS = ["-1", "256", "4096", "999999999999999", "9" * 5000, "1e9", "٣", "0x10", "\x00", ""]
HONEST = [b"tick 3 1\n", b"end 2 exit 0 12\n", b"ends exit 0 3\n", b"over 3 1\n"]


def key(folder: Path, name: str) -> paramiko.PKey:
    path = folder / name
    form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(*form))
    return paramiko.Ed25519Key.from_private_key_file(str(path))


def talk(dice: random.Random) -> Iterator[bytes]:
    """Yield what a guest says, honest lines among the others, for ever or to an end."""
    for _ in range(dice.choice([0, 3, 30, 300, 100_000_000])):
        match dice.randrange(7):
            case 0:
                yield dice.choice(HONEST)
            case 1:
                words = [dice.choice(WORDS + NUMBERS) for _ in range(dice.randrange(6))]
                yield (" ".join(words) + "\n").encode()
            case 2:
                yield dice.randbytes(dice.choice([1, 100, 60_000]))
            case 3:
                yield b"tick 1 0\n" * dice.choice([1, 5000])
            case 4:
                yield b"x" * 60_000
            case _:
                time.sleep(dice.choice([0, 0.01, 0.1]))
                yield b""


class Guest(OpenServer):
    """Lets everybody in, and answers every command with the talk of its seed."""

    def __init__(self, seed: str, over: threading.Event) -> None:
        self.dice, self.over = random.Random(seed), over

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self.dice.random() < 0.03:
            return False
        threading.Thread(target=self._answer, args=(channel, command), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel, command: bytes) -> None:
        dice = self.dice
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            if command == b"true" and dice.random() < 0.7:
                channel.send_exit_status(dice.choice([0, 0, 0, 1, 255]))
                channel.close()
                return
            channel.settimeout(1)
            for piece in talk(dice):
                if self.over.is_set():
                    break
                send = channel.sendall if dice.random() < 0.9 else channel.sendall_stderr
                send(piece)
            end = dice.randrange(4)
            if end == 0:
                channel.transport.close()
            elif end == 1:
                channel.send_exit_status(dice.randrange(256))
                channel.close()
            elif end == 2:
                channel.close()


class Speaker(Guest):
    """An honest runner, whose program goes on for ever and says `words`."""

    words = b""

    def _answer(self, channel: paramiko.Channel, command: bytes) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            runs = command != b"true"
            if runs:
                channel.sendall_stderr(self.words)
            # Who has ended stdin has been told that the command has begun: only then it may end.
            while not (self.over.is_set() or channel.eof_received):
                if runs:
                    channel.sendall(b"tick 1 0\n")
                time.sleep(0.05)
            if runs:
                channel.sendall(b"over 1 0\n")
            channel.send_exit_status(0)
            channel.close()


class Farm:
    """A hostile guest behind a port of this host."""

    kind: type[Guest] = Guest
    limits = LIMITS

    def __init__(self, folder: Path) -> None:
        self.folder, self.host_key = folder, key(folder, "host")
        key(folder, "client")
        self.over = threading.Event()

    @contextlib.asynccontextmanager
    async def guest(self, seed: str) -> AsyncIterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            over = threading.Event()
            thread = threading.Thread(target=self._serve, args=(server, seed, over), daemon=True)
            thread.start()
            try:
                yield server.getsockname()[1]
            finally:
                over.set()
                await asyncio.to_thread(thread.join, 10)

    def _serve(self, server: socket.socket, seed: str, over: threading.Event) -> None:
        transports, number = [], 0
        while not over.is_set():
            try:
                link, _ = server.accept()
            except TimeoutError:
                continue
            transports.append(transport := paramiko.Transport(link))
            transport.add_server_key(self.host_key)
            number += 1
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(
                    event=threading.Event(), server=self.kind(f"{seed}-{number}", over)
                )
        for transport in transports:
            transport.close()

    @contextlib.asynccontextmanager
    async def connected(self, port: int, limit: float = 5) -> AsyncIterator[Ssh]:
        public = f"{self.host_key.get_name()} {self.host_key.get_base64()}"
        dial = partial(socket.create_connection, ("127.0.0.1", port))
        async with Ssh.connected(dial, public, self.folder / "client", limit) as ssh:
            yield ssh

    async def session(self, seed: str) -> tuple[InstanceEnding, Session, float]:
        """Run a session with the guest of this seed; return how and in what time it ended."""
        files = [self.folder / f"{seed}-{name}.log" for name in ("console", "output")]
        console, output = map(Console, files)
        session = Session(RunTime(WANTED), self.limits, console, output, lambda _: None, CONVENTION)

        async def idle() -> bool:
            return True

        async with self.guest(seed) as port, contextlib.AsyncExitStack() as stack:

            async def connect() -> Ssh:
                return await stack.enter_async_context(self.connected(port, self.limits.reconnect))

            ssh = await stack.enter_async_context(self.connected(port))
            begin = time.monotonic()
            try:
                ending = await session.run(ssh, connect, idle)
            except InstanceEnded as end:
                ending = end.ending
            took = time.monotonic() - begin
        console.close()
        output.close()
        return ending, session, took


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


ENDINGS = {
    *(InstanceOutcome.SURVIVED, InstanceOutcome.HUNG, InstanceOutcome.SSH_LOST),
    *(InstanceOutcome.START_FAILED, InstanceOutcome.ENDED_EARLY, InstanceOutcome.NOT_DONE),
}


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_every_session_with_a_hostile_guest_ends(farm: Farm) -> None:
    seen = set()
    for batch in range(6):
        seeds = [f"{SEED}-{batch}-{number}" for number in range(8)]
        sessions = await asyncio.gather(*(farm.session(seed) for seed in seeds))
        for seed, (ending, session, took) in zip(seeds, sessions, strict=True):
            assert ending.outcome in ENDINGS, seed
            assert took < LONGEST + 20, seed  # for a busy host: endless is what it must not be
            assert len(session.ends) < 400, seed
            seen.add(ending.outcome)
    assert len(seen) > 2, seen


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (b"", ""),
        (b"\n \x1b[0m\n", ""),
        (b"no tun here\n", "the program's last words: no tun here"),
        (b"\x1b[2J\x1b]0;owned\x07bad\x08\n", "the program's last words: bad?"),
    ],
)
async def test_last_words_are_printable(farm: Farm, words: bytes, detail: str) -> None:
    farm.limits, farm.kind = PATIENT, type("Saying", (Speaker,), {"words": words})
    ending, session, _ = await farm.session("speaker")
    assert (ending.outcome, ending.detail) == (InstanceOutcome.SURVIVED, detail)
    assert session.runs == 1


@pytest.mark.thorough
async def test_long_last_words_are_bounded(farm: Farm) -> None:
    farm.limits, farm.kind = PATIENT, type("Saying", (Speaker,), {"words": b"\x1b[1m-" * 20_000})
    ending, _, _ = await farm.session("speaker")
    assert ending.outcome is InstanceOutcome.SURVIVED
    assert ending.detail.isprintable()
    assert len(ending.detail) < 1000


async def test_a_command_that_floods_is_cut_off(farm: Farm) -> None:
    class Flood(Guest):
        def _answer(self, channel: paramiko.Channel, command: bytes) -> None:
            del command
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                while not self.over.is_set():
                    channel.sendall(b"x" * 60_000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            transport = paramiko.Transport(server.accept()[0])
            transport.add_server_key(farm.host_key)
            transport.start_server(event=threading.Event(), server=Flood("0", over))
            over.wait(60)
            transport.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        async with farm.connected(server.getsockname()[1]) as ssh:
            with pytest.raises(ConnectionLost, match="more than 4 MiB"):
                await ssh.run("true", limit=60)
        over.set()
        await asyncio.to_thread(thread.join, 10)


@pytest.mark.thorough
def test_a_hostile_runner_fills_no_memory() -> None:
    dice = random.Random(SEED)
    log = RunnerLog()
    for _ in range(20_000):
        words = [dice.choice([*WORDS, *NUMBERS, str(dice.randrange(1000))]) for _ in range(5)]
        log.feed(" ".join(words).encode() + dice.choice([b"", b" ", b"\n"]))
        for how in ("exit", "signal"):
            log.feed(f"end 1 {how} {dice.randrange(10**4)} 5\n".encode())
    assert len(log.ends) <= 256 + 128
    assert len(log._rest) < 1000
    assert log.failed is None or log.failed < 4096


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_hostile_guest_is_left_in_time_and_reports_no_fault(farm: Farm) -> None:
    everything = Detectors(lacking={}, ubsan=("shift",), panics=True)
    console = Console(farm.folder / "console.log")
    for number in range(8):
        (share, *_) = shares(ControlName)
        controls = Controls(console, everything, share, limit=1.5)
        async with farm.guest(f"{SEED}-controls-{number}") as port:
            begin = time.monotonic()
            await controls.raise_all(partial(farm.connected, port))
            assert time.monotonic() - begin < controls.limit + 20
        assert controls.outcomes.keys() == set(share.names)
        outcomes = {control.outcome for control in controls.outcomes.values()}
        assert outcomes <= {ControlOutcome.NOT_TRIED, ControlOutcome.SILENT}, number
    console.close()
