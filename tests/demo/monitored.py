"""Servers, such as a monitor, on event loops in threads of their own, beside blocking code."""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import uvloop

from kgym.transport.artifact_storage import LocalStorage
from kgym_monitor.server import monitor

# How long it may take to start,
_SECONDS = 60
# and to end.
_LAST_SECONDS = 30
Server = TypeVar("Server")


@contextmanager
def threaded(
    opened: Callable[[asyncio.AbstractEventLoop], AbstractAsyncContextManager[Server]],
) -> Iterator[Server]:
    """Open a server, given its loop, while the context lasts; raises what opening it raises."""
    started: Future[Server] = Future()
    loop, stop = uvloop.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with opened(loop) as server:
            started.set_result(server)
            await stop.wait()

    def run() -> None:
        serving = loop.create_task(serve())
        loop.run_until_complete(asyncio.wait([serving]))
        if not started.done() and (error := serving.exception()) is not None:
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started.result(_SECONDS)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_LAST_SECONDS)
        loop.close()


@contextmanager
def monitored(
    scheduler: str,
    token: str | None = None,
    port: int = 0,
    agent: str | None = None,
    benchmarks: Path | None = None,
) -> Iterator[str]:
    """Run a monitor of this scheduler while the context lasts; yield its URL.

    `benchmarks` is the folder of published benchmarks; None: there are none.
    """

    @asynccontextmanager
    async def opened(_: asyncio.AbstractEventLoop) -> AsyncIterator[str]:
        async with monitor(
            scheduler, token, LocalStorage(published), port=port, find_agent=lambda: agent
        ) as address:
            yield address.url

    with ExitStack() as stack:
        published = benchmarks or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield stack.enter_context(threaded(opened))
