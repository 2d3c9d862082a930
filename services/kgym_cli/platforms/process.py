"""Processes of the platform: signals and garbage collection."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from kgym.host import process_logs


def settle() -> None:
    """Exclude all existing objects from garbage collection."""
    # A scheduler's modules and routes are over 100,000 objects that live as long as the process.
    # Scanning them again and again took two thirds of its time under load.
    gc.collect()
    gc.freeze()


def run(
    main: Coroutine[Any, Any, None],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a coroutine until it ends, or until SIGTERM or SIGINT cancels it."""
    process_logs.configure()

    async def cancellable() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel if task else loop.stop)
        # A stop by signal is a success: the exit status is 0.
        with contextlib.suppress(asyncio.CancelledError):
            await main

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(cancellable())
