"""SSH into a guest: paramiko, whose blocking calls run on a thread per connection.

Every call has a time limit; leaving the context ends calls that are blocked.
"""

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import paramiko

T = TypeVar("T")
# Connects within so many seconds, or raises OSError.
Dial = Callable[[float], socket.socket]

logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # it logs each lost connection

_CHUNK = 1 << 16
_READ_SECONDS = 0.5
# Characters of a command that an error quotes.
_SHOWN = 300
# Bytes that a command of `run` or of a shell may print: they are kept in memory.
_MOST_BYTES = 4 << 20
# The algorithms of both sides that cost an emulated CPU least.
_CIPHERS = ("aes128-ctr",)
_DIGESTS = ("hmac-sha2-256",)
_EXCHANGES = ("curve25519-sha256@libssh.org",)


class ConnectionLost(Exception):
    """The guest's SSH server does not answer, or the connection broke."""


class CommandRefused(Exception):
    """The guest cannot or does not execute a command of ours."""


class Ssh:
    """A connection to a guest as root; use `Ssh.connected`."""

    def __init__(self, transport: paramiko.Transport, thread: ThreadPoolExecutor) -> None:
        self._transport = transport
        self._thread = thread

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(
        cls, dial: Dial, host_key: str, client_key: Path, limit: float
    ) -> "AsyncIterator[Ssh]":
        """Connect by `dial`, with retries for `limit` seconds. Raises ConnectionLost.

        Only a server with `host_key` is accepted.
        """
        thread = ThreadPoolExecutor(1, "ssh")
        transports: list[paramiko.Transport] = []

        def attempt(limit: float) -> paramiko.Transport:
            return _open(dial, host_key, client_key, limit, transports)

        try:
            ssh = cls(await _persist(thread, attempt, limit), thread)
            yield ssh
        finally:
            closing = [asyncio.to_thread(transport.close) for transport in transports]
            await asyncio.gather(*closing, return_exceptions=True)
            thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, command: str, *, stdin: bytes = b"", limit: float) -> tuple[int, bytes]:
        """Run a command to its end; return its status and at most a few MiB of output."""
        return await self._call(lambda: self._run(command, stdin, limit), limit + 1)

    async def start(self, command: str, limit: float) -> "Stream":
        """Start a command; its output comes through the stream."""
        return Stream(self, await self._call(lambda: self._exec(command, limit), limit + 1))

    async def _call(self, call: Callable[[], T], limit: float) -> T:
        return await _on(self._thread, call, limit)

    def _exec(self, command: str, limit: float) -> paramiko.Channel:
        channel = self._transport.open_session(timeout=limit)
        channel.settimeout(limit)
        channel.exec_command(command)
        return channel

    def _run(self, command: str, stdin: bytes, limit: float) -> tuple[int, bytes]:
        until = time.monotonic() + limit
        channel = self._exec(command, limit)
        channel.set_combine_stderr(True)
        channel.sendall(stdin)
        channel.shutdown_write()
        output = bytearray()
        while chunk := channel.recv(_CHUNK):
            output += chunk
            if len(output) > _MOST_BYTES:
                raise EOFError(f"the command printed more than {_MOST_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
        if not channel.status_event.wait(max(0.1, until - time.monotonic())):
            raise TimeoutError
        if channel.exit_status < 0:
            raise EOFError("the connection ended before the command")
        return channel.exit_status, bytes(output)


class Stream:
    """The output of a running command."""

    def __init__(self, ssh: Ssh, channel: paramiko.Channel) -> None:
        self._ssh = ssh
        self._channel = channel
        # Paramiko sets it while there is output to read, and after the end of the output.
        self._news = threading.Event()
        channel.in_buffer.set_event(self._news)
        channel.in_stderr_buffer.set_event(self._news)

    async def read(self, wait: float) -> tuple[bytes, bytes, bool]:
        """Return new stdout, new stderr, and whether there will be more.

        Waits up to `wait` seconds for something to come.
        """
        return await self._ssh._call(lambda: self._read(wait), wait + 10)

    @property
    def status(self) -> int:
        """The command's status; -1 while it runs, or if its end is unknown."""
        return self._channel.exit_status

    async def send(self, data: bytes) -> None:
        """Write to the command's stdin."""
        await self._ssh._call(lambda: self._channel.sendall(data), 10)

    async def finish(self) -> None:
        """End the command's stdin."""
        await self._ssh._call(self._channel.shutdown_write, 10)

    def _read(self, wait: float) -> tuple[bytes, bytes, bool]:
        until = time.monotonic() + wait
        channel = self._channel
        while True:
            # The status may arrive before the last output.
            ended = channel.closed or (channel.eof_received and channel.exit_status_ready())
            out = channel.recv(_CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
            left = until - time.monotonic()
            if out or err or ended or left <= 0:
                return out, err, bool(out or err) or not ended
            (channel.status_event if channel.eof_received else self._news).wait(left)


class Shell:
    """A shell that runs one command after the other over one connection; use `Shell.started`."""

    # On an emulated CPU a new SSH channel takes longer than most commands. A numbered line after
    # each command marks its end.

    def __init__(self, stream: Stream, limit: float) -> None:
        self._stream = stream
        self._limit = limit
        self._number = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, ssh: Ssh, limit: float) -> "AsyncIterator[Shell]":
        """Start a shell; `limit` is the default time limit of a command in seconds."""
        yield cls(await ssh.start("exec /bin/sh 2>&1", limit), limit)

    async def do(self, command: str, limit: float | None = None) -> tuple[int, str]:
        """Run one line; return its status and output. Raises ConnectionLost or CommandRefused."""
        self._number += 1
        end = re.compile(rb"\nkgym %d ([0-9]{1,3})\n" % self._number)
        line = (
            f"{{ {command.strip().rstrip(';')}; }}; printf '\\nkgym %d %d\\n' {self._number} $?\n"
        )
        await self._stream.send(line.encode())
        until = time.monotonic() + (limit or self._limit)
        output = b"\n"
        while not (match := end.search(output)):
            if time.monotonic() > until:
                raise ConnectionLost(f"the guest's shell does not answer: {command[:_SHOWN]}")
            if len(output) > _MOST_BYTES:
                raise CommandRefused(f"the guest's shell prints without end: {command[:_SHOWN]}")
            out, err, more = await self._stream.read(_READ_SECONDS)
            output += out + err
            if not more and not end.search(output):
                raise ConnectionLost("the guest's shell ended")
        return int(match[1]), output[: match.start()].decode(errors="replace").strip()


async def _persist(
    thread: ThreadPoolExecutor, attempt: Callable[[float], paramiko.Transport], limit: float
) -> paramiko.Transport:
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        try:
            return await _on(thread, partial(attempt, left), left + 1)
        except ConnectionLost:
            if time.monotonic() + 1 >= until:
                raise
            await asyncio.sleep(0.2)


def _open(
    dial: Dial, host_key: str, client_key: Path, limit: float, opened: list[paramiko.Transport]
) -> paramiko.Transport:
    transport = paramiko.Transport(dial(limit))
    opened.append(transport)
    transport.banner_timeout = transport.auth_timeout = transport.handshake_timeout = limit
    options = transport.get_security_options()
    options.ciphers, options.digests, options.kex = _CIPHERS, _DIGESTS, _EXCHANGES
    transport.start_client(timeout=limit)
    key = transport.get_remote_server_key()
    if f"{key.get_name()} {key.get_base64()}" != host_key:
        raise EOFError("the guest has another host key")
    transport.auth_publickey("root", paramiko.Ed25519Key.from_private_key_file(str(client_key)))
    return transport


async def _on(thread: ThreadPoolExecutor, call: Callable[[], T], limit: float) -> T:
    """Run a blocking call on the thread; every network error becomes ConnectionLost."""
    try:
        async with asyncio.timeout(limit):
            return await asyncio.get_running_loop().run_in_executor(thread, call)
    except (paramiko.SSHException, OSError, EOFError, TimeoutError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error
