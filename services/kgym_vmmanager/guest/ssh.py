"""The way into a guest: paramiko, whose blocking calls run on a thread of their own.

Every call has a time limit. `close` ends whatever is blocked.
"""

import asyncio
import contextlib
import logging
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
# Makes a connection within so many seconds, or raises OSError.
Dial = Callable[[float], socket.socket]

logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # it logs each lost connection

_CHUNK = 1 << 16
# What a command that is run to its end may print: all of it is kept in memory.
_MOST_BYTES = 4 << 20
# The cheapest for an emulated CPU among those that both sides have.
_CIPHERS = ("aes128-ctr",)
_DIGESTS = ("hmac-sha2-256",)
_EXCHANGES = ("curve25519-sha256@libssh.org",)


class ConnectionLost(Exception):
    """The guest's SSH server does not answer, or not any more."""


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
        """Connect by `dial`, trying again until `limit` seconds are over.

        `host_key` is the only one accepted. Raises ConnectionLost.
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
        """Run a command to its end; return its status and its output, of a few MiB at most."""
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
        # Set by paramiko while there is output to read, and from the end of the output on.
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
        """The command's status; -1 while it runs, and where its end is not known."""
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
            # How a command ended may be told before the last of its output.
            ended = channel.closed or (channel.eof_received and channel.exit_status_ready())
            out = channel.recv(_CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
            left = until - time.monotonic()
            if out or err or ended or left <= 0:
                return out, err, bool(out or err) or not ended
            (channel.status_event if channel.eof_received else self._news).wait(left)


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
    """Run a blocking call; whatever the network does to it is ConnectionLost."""
    try:
        async with asyncio.timeout(limit):
            return await asyncio.get_running_loop().run_in_executor(thread, call)
    except (paramiko.SSHException, OSError, EOFError, TimeoutError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error
