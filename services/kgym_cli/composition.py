"""What a process of the distributed platform is made of: its bus and its storage."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kgym.errors import UserError
from kgym.host import process_logs
from kgym.transport.artifact_storage import LocalStorage, Storage
from kgym.transport.bus import Bus, InProcessBus
from kgym.transport.rabbitmq import RabbitBus


@asynccontextmanager
async def open_bus(url: str | None) -> AsyncIterator[Bus]:
    """Connect to the bus at `amqp://…`. Without one, workers ask every second."""
    if url is None:
        yield InProcessBus()
        return
    if urlsplit(url).scheme not in {"amqp", "amqps"}:
        raise UserError("unsupported_bus", f"cannot use the bus {url!r}: give an amqp:// URL")
    async with RabbitBus(url) as bus:
        yield bus


def open_storage(url: str) -> Storage:
    """Return the storage in a folder, given by its path or as `file://…`."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return LocalStorage(Path(unquote(parts.path)))
    if parts.scheme:
        raise UserError(
            "unsupported_storage",
            f"cannot use the storage {url!r}: give a folder that scheduler and workers share",
        )
    return LocalStorage(Path(url))


def settle() -> None:
    """Let the garbage collector skip all that was made so far, which stays until the process ends.

    A scheduler's modules and routes are over a hundred thousand objects; walking through them
    again and again took two thirds of its time under load.
    """
    gc.collect()
    gc.freeze()


def run(
    main: Coroutine[Any, Any, None],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run until it ends by itself, or SIGTERM or SIGINT cancels it: then it cleans up."""
    process_logs.configure()

    async def cancellable() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel if task else loop.stop)
        with contextlib.suppress(asyncio.CancelledError):
            await main

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(cancellable())
