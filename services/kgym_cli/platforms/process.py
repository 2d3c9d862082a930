"""A process of the platform: runs until it is stopped, and then cleans up."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from kgym.host import process_logs


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
