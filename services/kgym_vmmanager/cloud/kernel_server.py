"""HTTP server from which a worker's VMs fetch kernels and initrds, under unguessable names."""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from kgym.errors import InfrastructureError

# Hostile guests reach this port too. Without a name they get nothing, each request has a time
# limit, and the connections of an address are limited, so that no guest starves the others.
_AT_ONCE = 64
_OF_ONE_ADDRESS = 8
_HEAD_SECONDS = 10.0
_BODY_SECONDS = 300.0
_MOST_HEAD = 4 << 10


class KernelServer:
    """Serves files, each under a random name and only while a VM may fetch it."""

    def __init__(self, address: str, port: int, listen: str | None = None) -> None:
        """`address` is the worker's in the VMs' network; `listen` is None for all interfaces."""
        self._address = address
        self._listen = listen
        self._port = port
        self._files: dict[str, Path] = {}
        self._busy = asyncio.Semaphore(_AT_ONCE)
        self._asking: Counter[str] = Counter()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["KernelServer"]:
        """Listen while the context lasts. Raises InfrastructureError `port_taken`."""
        try:
            server = await asyncio.start_server(
                self._answer, self._listen, self._port, limit=_MOST_HEAD, reuse_address=True
            )
        except OSError as error:
            message = f"cannot listen on port {self._port} for VMs: {error.strerror or error}"
            raise InfrastructureError("port_taken", message) from error
        async with server:
            self._port = server.sockets[0].getsockname()[1]
            yield self

    @contextmanager
    def served(self, path: Path) -> Iterator[str]:
        """Serve a file while the context lasts; yield its URL."""
        name = secrets.token_urlsafe(24)
        self._files[name] = path
        try:
            yield f"http://{self._address}:{self._port}/{name}"
        finally:
            del self._files[name]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str((writer.get_extra_info("peername") or "?")[0])
        self._asking[peer] += 1
        try:
            if self._asking[peer] > _OF_ONE_ADDRESS:
                return
            async with self._busy:
                async with asyncio.timeout(_HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(_BODY_SECONDS):
                    await self._send(head.split(b" ", 2), writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._asking[peer] -= 1
            self._asking += Counter()  # drops addresses without connections
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _send(self, words: list[bytes], writer: asyncio.StreamWriter) -> None:
        name = words[1].decode("ascii", "replace").lstrip("/") if len(words) == 3 else ""
        path = self._files.get(name) if words[0] == b"GET" else None
        if path is None:
            writer.write(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        with path.open("rb") as file:
            size = path.stat().st_size
            writer.write(f"HTTP/1.0 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
            await writer.drain()
            await asyncio.get_running_loop().sendfile(writer.transport, file)
