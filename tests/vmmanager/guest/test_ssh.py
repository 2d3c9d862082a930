"""What a command in the guest prints is read as it comes, from an SSH server of this process."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import paramiko
import pytest

from kgym_vmmanager.guest.ssh import Stream
from tests.vmmanager.evidence.test_hostile_guest import Farm, Guest

pytestmark = pytest.mark.anyio

Command = Callable[[paramiko.Channel], None]


@contextlib.asynccontextmanager
async def started(folder: Path, command: Command) -> AsyncIterator[Stream]:
    class Obeying(Guest):
        def _answer(self, channel: paramiko.Channel, line: bytes) -> None:
            del line
            with contextlib.suppress(EOFError):  # the reader hangs up as soon as it knows the end
                command(channel)

    farm = Farm(folder)
    farm.kind = Obeying
    async with farm.guest("ssh") as port, farm.connected(port, 30) as ssh:
        yield await ssh.start("anything", 30)


async def rest(stream: Stream) -> tuple[bytes, bytes]:
    out, err, more = b"", b"", True
    while more:
        new_out, new_err, more = await stream.read(30)
        out, err = out + new_out, err + new_err
    return out, err


@pytest.mark.thorough
async def test_what_is_said_is_noticed_at_once_and_silence_costs_nothing(tmp_path: Path) -> None:
    said_at: list[float] = []
    go_on = threading.Event()

    def command(channel: paramiko.Channel) -> None:
        for number in range(30):
            assert go_on.wait(30)
            go_on.clear()
            time.sleep(0.01)
            said_at.append(time.monotonic())
            (channel.sendall_stderr if number % 2 else channel.sendall)(b"x")
        channel.close()

    late = []
    async with started(tmp_path, command) as stream:
        cpu = time.process_time()
        assert await stream.read(0.3) == (b"", b"", True)
        cpu = time.process_time() - cpu
        for _ in range(30):
            go_on.set()
            assert len(b"".join((await stream.read(30))[:2])) == 1
            late.append(time.monotonic() - said_at[-1])
    # Polled every 50 ms, not even one of two would be noticed within 10 ms.
    assert sorted(late)[len(late) // 4] < 0.01
    assert cpu < 0.1


@pytest.mark.thorough
async def test_the_end_is_the_end_of_the_output_and_the_status(tmp_path: Path) -> None:
    def command(channel: paramiko.Channel) -> None:
        channel.send_exit_status(3)  # as OpenSSH does, which does not wait for the last output
        time.sleep(0.2)
        channel.sendall(b"last words")
        channel.shutdown_write()
        channel.close()

    async with started(tmp_path, command) as stream:
        await asyncio.sleep(0.1)
        assert await rest(stream) == (b"last words", b"")
        assert stream.status == 3


@pytest.mark.thorough
async def test_a_status_that_comes_after_the_output_is_waited_for(tmp_path: Path) -> None:
    def command(channel: paramiko.Channel) -> None:
        channel.sendall_stderr(b"words")
        channel.shutdown_write()
        time.sleep(0.2)
        channel.send_exit_status(4)
        channel.close()

    async with started(tmp_path, command) as stream:
        assert await rest(stream) == (b"", b"words")
        assert stream.status == 4


@pytest.mark.thorough
async def test_a_connection_that_is_lost_ends_the_wait(tmp_path: Path) -> None:
    def command(channel: paramiko.Channel) -> None:
        time.sleep(0.2)
        channel.transport.close()

    async with started(tmp_path, command) as stream:
        begin = time.monotonic()
        assert await stream.read(30) == (b"", b"", False)
        assert time.monotonic() - begin < 20
        assert stream.status == -1
