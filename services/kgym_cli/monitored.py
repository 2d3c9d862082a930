"""A monitor in a thread of its own, beside blocking code: for tests and screenshots."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from kgym_monitor.server import monitor


@contextmanager
def monitored(
    scheduler: str, token: str | None = None, port: int = 0, agent: str | None = None
) -> Iterator[str]:
    """Run a monitor of this scheduler while the context lasts; yield its URL."""
    started: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with monitor(scheduler, token, port=port, find_agent=lambda: agent) as address:
            started.set_result(address.url)
            await stop.wait()

    def run() -> None:
        serving = loop.create_task(serve())
        loop.run_until_complete(asyncio.wait([serving]))
        if not started.done() and (error := serving.exception()) is not None:
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started.result(60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
