"""Interruptible work: commands that run many jobs for minutes or days, and can be resumed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.bugs.sweep import SweepOptions
    from kgym.client import AsyncClient

T = TypeVar("T")
Work = Callable[["AsyncClient", "SweepOptions"], Awaitable[T]]


def run(work: Work[T], options: "SweepOptions") -> T:
    """Return the result of `work`, called with a client of the chosen scheduler.

    A signal cancels it but not its jobs, and raises KeyboardInterrupt.
    """
    try:
        with address(work=True) as (url, token):
            if settings().server is None:
                # Nothing restarts this machine's own platform: waiting for it is useless.
                options = replace(options, patience=0)
            return interruptible(_run(url, token, work, options))
    except KeyboardInterrupt:
        people.print(
            f"interrupted: repeat the command to continue, or `kgym group abort {options.name}` to"
            " abort its jobs"
        )
        raise


async def _run(url: str, token: str | None, work: Work[T], options: "SweepOptions") -> T:
    from kgym.client import AsyncClient  # noqa: PLC0415 - commands that only need `interruptible`

    async with AsyncClient(url, token) as client:
        return await work(client, options)


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. The first SIGINT or SIGTERM cancels it, so that it can abort its jobs.

    A second signal is handled as before: it kills the process without cleanup.
    """
    # A KeyboardInterrupt raised inside the event loop would also cancel the code that aborts the
    # jobs. Ignored signals stay ignored: `nohup` and background jobs of a shell rely on it.
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    handlers = {signum: how for signum, how in handlers.items() if how is not signal.SIG_IGN}

    async def carried_out() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            restore()
            task.cancel()

        def restore() -> None:
            for number, handler in handlers.items():
                if loop.remove_signal_handler(number):
                    signal.signal(number, handler)

        for number in handlers:
            loop.add_signal_handler(number, interrupt)
        try:
            return await work
        finally:
            restore()

    try:
        return asyncio.run(carried_out())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
