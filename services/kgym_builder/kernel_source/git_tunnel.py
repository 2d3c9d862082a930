"""A tunnel out of a sandbox that fetches: to allowed addresses only, for a limited number of bytes.

The sandbox has no network, as the server controls Git's input. Inside, `git_relay.py` forwards
connections to a Unix socket, where the worker speaks SOCKS 5 (RFC 1928): it resolves names,
connects only to addresses that it has checked, and counts bytes.
"""

import asyncio
import contextlib
import ipaddress
import os
import shutil
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path
from typing import Self

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host.scratch import scratch
from kgym_builder.kernel_source import git_relay
from kgym_builder.kernel_source.allowed_origins import Origins

# Path of `Tunnel.folder` in the sandbox.
PLACE = "/kgym/net"
_SOCKET = "socket"
_CERTIFICATES = "ca.pem"
_CONNECT_SECONDS = 60.0
_PIECE = 1 << 16
_VERSION, _NO_PASSWORD, _CONNECT = 5, 0, 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE, _NOT_ALLOWED, _NO_HOST = 0, 2, 4


class Tunnel:
    """A context with a tunnel for the sandboxes that mount its `folder`."""

    def __init__(
        self, name: str, origins: Origins, most: int, passed: Callable[[int], None]
    ) -> None:
        """Lead to the repository `name`; at most `most` bytes pass, and `passed` gets their sum."""
        # The first reason why a connection was refused.
        self.refused: KgymError | None = None
        # Bytes that may pass in total.
        self.most = most
        self._name = name
        self._origins = origins
        self._passed = passed
        self._bytes = 0
        self._open: set[asyncio.Task[None]] = set()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            # The inner folder is open to the sandbox's user, the outer one closed to all others.
            self.folder = stack.enter_context(scratch("net")) / "net"
            self.folder.mkdir()
            await asyncio.to_thread(_copy_certificates, self.folder / _CERTIFICATES)
            path = self.folder / _SOCKET
            server = await asyncio.start_unix_server(self._accept, path)
            stack.push_async_callback(self._close, server)
            path.chmod(0o666)
            self.folder.chmod(0o755)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def command(self, argv: list[str]) -> list[str]:
        """Return a command that runs this one in the sandbox behind the relay."""
        text = Path(git_relay.__file__).read_text()
        return ["python3", "-I", "-c", text, f"{PLACE}/{_SOCKET}", *argv]

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names the authorities' certificates to Git."""
        return {"GIT_SSL_CAINFO": f"{PLACE}/{_CERTIFICATES}"}

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, near: StreamReader, answer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._lead(near, answer)
        except (OSError, EOFError, TimeoutError, UnicodeError):
            pass  # the client sees the connection close
        except KgymError as error:
            self.refused = self.refused or error
        except asyncio.CancelledError:  # not raised: asyncio's server would log it
            answer.transport.abort()
        finally:
            self._open.discard(task)
            answer.close()

    async def _lead(self, near: StreamReader, answer: StreamWriter) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            host, port = await _asked(near, answer)
            try:
                addresses = await self._origins.addresses(host, port)
            except KgymError:
                _reply(answer, _NOT_ALLOWED)
                raise
            try:
                far, sink = await _connected(addresses, port)
            except OSError:
                _reply(answer, _NO_HOST)
                raise
        try:
            _reply(answer, _DONE)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(near, sink))
                group.create_task(self._pump(far, answer))
        except ExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None
        finally:
            sink.transport.abort()

    async def _pump(self, source: StreamReader, sink: StreamWriter) -> None:
        while data := await source.read(_PIECE):
            self._bytes += len(data)
            if self._bytes > self.most:
                message = f"{self._name} sends more than the {self.most} bytes that are allowed"
                raise UserError("source_too_large", message)
            self._passed(self._bytes)
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()


async def _asked(near: StreamReader, answer: StreamWriter) -> tuple[str, int]:
    """Read the client's greeting and request; return the host and port that it asks for."""
    version, methods = await near.readexactly(2)
    await near.readexactly(methods)
    answer.write(bytes([_VERSION, _NO_PASSWORD]))
    _, command, _, kind = await near.readexactly(4)
    if version != _VERSION or command != _CONNECT:
        raise EOFError
    if kind == _NAME:
        (length,) = await near.readexactly(1)
        host = (await near.readexactly(length)).decode("ascii")
    elif kind in {_IPV4, _IPV6}:
        packed = await near.readexactly(4 if kind == _IPV4 else 16)
        host = str(ipaddress.ip_address(packed))
    else:
        raise EOFError
    return host, int.from_bytes(await near.readexactly(2), "big")


def _reply(answer: StreamWriter, status: int) -> None:
    answer.write(bytes([_VERSION, status, 0, _IPV4]) + bytes(6))


async def _connected(addresses: list[str], port: int) -> tuple[StreamReader, StreamWriter]:
    failed = OSError("no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as error:
            failed = error
    raise failed


def _copy_certificates(target: Path) -> None:
    """Copy the authorities' certificates that the worker itself trusts."""
    named = os.environ.get("GIT_SSL_CAINFO") or os.environ.get("SSL_CERT_FILE")
    path = named or "/etc/ssl/certs/ca-certificates.crt"
    try:
        shutil.copyfile(path, target)
    except OSError as error:
        message = f"cannot read the authorities' certificates ({path}): {error.strerror}"
        raise InfrastructureError("missing_tool", message) from error
    target.chmod(0o644)
