"""An HTTP server in this process."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from kgym.errors import UserError
from kgym.web.access import open_paths
from kgym.web.callers import Tokens
from kgym.web.connection_limits import ConnectionLimits, guarded
from kgym.web.loopback import is_loopback

LOOPBACK = "127.0.0.1"
# Time for open requests to finish once the server stops; event streams end at once.
GRACE_SECONDS = 1

TICK_SECONDS = 1.0
# Time after which an idle connection is closed: longer than clients keep theirs, since a client
# that sends a request while the server closes the connection sees an error.
KEEP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The base URL for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def url_here(self) -> str:
        """The base URL for programs on this machine."""
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return Address(here, self.port).url


class Served(Protocol):
    """An application that can be served, such as a `kgym.web.service.Service`."""

    @property
    def routes(self) -> list[BaseRoute]:
        """Its routes."""

    @property
    def tokens(self) -> Tokens:
        """The token store."""

    @property
    def hang_up(self) -> Callable[[], None]:
        """End event streams and other requests that would keep connections open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


@contextlib.asynccontextmanager
async def serve(
    app: Served, host: str = LOOPBACK, port: int = 0, bounds: ConnectionLimits | None = None
) -> AsyncIterator[Address]:
    """Context manager: serve the application; port 0 selects a free port.

    `app.hang_up` is called before the server stops. Signals are left to the caller.

    Raises UserError `port_in_use` or `cannot_listen`, and `token_needed` for an address other
    than loopback if no token exists; RuntimeError if a route has no access rule (`access`).
    """
    open_paths(app.routes)
    listener = listen(host, port)
    try:
        await _guard(listener, app.tokens)
    except BaseException:
        listener.close()
        raise
    async with serving(app, listener, bounds or ConnectionLimits.of_process()):
        try:
            yield Address(host, listener.getsockname()[1])
        finally:
            app.hang_up()


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, bounds: ConnectionLimits
) -> AsyncIterator[None]:
    """Context manager: answer the requests of one socket; requests at its end have GRACE_SECONDS.

    Signals are left to the caller.
    """
    # uvicorn logs a warning for each malformed request: strangers could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    server = _Server(
        uvicorn.Config(
            app,
            http=guarded(bounds),
            interface="asgi3",
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=KEEP_SECONDS,
        )
    )
    task = asyncio.create_task(server.serve([listener]))
    try:
        await server.ready.wait()
        yield
    finally:
        server.stop()
        await asyncio.shield(task)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Make `serve` return."""
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: other parts of this process have theirs."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    async def main_loop(self) -> None:
        """Update the header `Date` each second; uvicorn's own loop wakes ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_SECONDS)


async def _guard(listener: socket.socket, tokens: Tokens) -> None:
    host = listener.getsockname()[0]
    if not is_loopback(host) and await tokens.anybody() is not None:
        raise UserError(
            "token_needed",
            f"{host} can be reached from other hosts, and there is no token yet: "
            "make one with `kgym token create`, or listen on 127.0.0.1",
            host=host,
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; raise UserError `port_in_use` or `cannot_listen`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol. Without it an answer's
    # body waits 40 ms for the acknowledgement of its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                "port_in_use",
                f"port {port} of {host} is in use by another program; "
                "stop that, or choose another port (0 takes any that is free)",
                host=host,
                port=port,
            ) from error
        message = f"cannot listen on {host}, port {port}: {error}"
        raise UserError("cannot_listen", message, host=host, port=port) from error
    return listener
