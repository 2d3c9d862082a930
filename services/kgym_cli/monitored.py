"""A monitor in a thread of its own, beside blocking code: for tests and screenshots."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from kgym_cli.threaded_server import threaded
from kgym_monitor.server import monitor


@contextmanager
def monitored(
    scheduler: str, token: str | None = None, port: int = 0, agent: str | None = None
) -> Iterator[str]:
    """Run a monitor of this scheduler while the context lasts; yield its URL."""

    @asynccontextmanager
    async def opened(_: asyncio.AbstractEventLoop) -> AsyncIterator[str]:
        async with monitor(scheduler, token, port=port, find_agent=lambda: agent) as address:
            yield address.url

    with threaded(opened) as url:
        yield url
