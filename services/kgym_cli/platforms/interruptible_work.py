"""Interruptible work: commands that run many jobs for minutes or days, and can be resumed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import settings

Work = Callable[[AsyncClient, SweepOptions], Awaitable[None]]


def run(work: Work, options: SweepOptions) -> None:
    """Call `work` with a client of the chosen scheduler.

    A signal cancels it but not its jobs, and raises KeyboardInterrupt.
    """
    try:
        with address(work=True) as (url, token):
            if settings().server is None:
                # Nothing restarts this machine's own platform: waiting for it is useless.
                options = replace(options, patience=0)
            asyncio.run(_run(url, token, work, options))
    except asyncio.CancelledError:
        people.print(
            f"interrupted: repeat the command to continue, or `kgym group abort {options.name}` to"
            " abort its jobs",
            markup=False,
        )
        raise KeyboardInterrupt from None


async def _run(url: str, token: str | None, work: Work, options: SweepOptions) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        # `nohup` ignores SIGINT on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    async with AsyncClient(url, token) as client:
        await work(client, options)
