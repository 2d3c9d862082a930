"""Commands that have many jobs done for minutes or days, and go on where they were."""

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
    """Do the work at the scheduler that is meant; a signal ends it, and its jobs go on.

    Raises KeyboardInterrupt then.
    """
    try:
        with address(work=True) as (url, token):
            if settings().server is None:
                # Nobody starts a platform of this machine again.
                options = replace(options, patience=0)
            asyncio.run(_run(url, token, work, options))
    except asyncio.CancelledError:
        people.print("interrupted; the same command goes on", markup=False)
        raise KeyboardInterrupt from None


async def _run(url: str, token: str | None, work: Work, options: SweepOptions) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    async with AsyncClient(url, token) as client:
        await work(client, options)
