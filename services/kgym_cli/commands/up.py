"""`kgym up`."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import click

from kgym.errors import KgymError, UserError
from kgym_cli import extras
from kgym_cli.agents import agent_choice
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import usable_data_folder
from kgym_cli.settings import Settings, options_of, settings

if TYPE_CHECKING:
    from kgym_cli.platforms.embedded_platform import Platform


@click.command()
@options_of("up")
@click.option(
    "--distributed",
    is_flag=True,
    help="Run PostgreSQL, RabbitMQ, scheduler and workers as separate processes.",
)
def up(distributed: bool) -> None:
    """Start scheduler, workers and monitor on this machine. Ctrl-C stops them; jobs are kept."""
    extras.require(*extras.ONE_MACHINE)
    # Imported late: these imports take longer than a whole command that needs none of them.
    from kgym.host import process_logs  # noqa: PLC0415

    process_logs.configure()
    if distributed:
        _distributed()
        return
    from kgym_cli.platforms.embedded_platform import Platform  # noqa: PLC0415
    from kgym_cli.platforms.process import run  # noqa: PLC0415

    chosen = settings()
    with Platform(usable_data_folder(), port=chosen.port, syzkaller=chosen.syzkaller) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        people.print(f"data: {usable_data_folder()}", style="dim")
        # Signals are handled by the loop: raised within a request, uvicorn would swallow them.
        run(_show(platform))
        if platform.lives:
            raise click.Abort  # by a signal


async def _show(platform: "Platform") -> None:
    """Serve the monitor's pages, if possible, until the platform ends.

    Raises the error that ended the platform.
    """
    from kgym_cli.platforms.process import settle  # noqa: PLC0415 - as above

    async with contextlib.AsyncExitStack() as stack:
        try:
            extras.require("monitor")
            from kgym_cli.platforms.composition import open_benchmarks  # noqa: PLC0415 - as above
            from kgym_monitor.server import monitor  # noqa: PLC0415

            serving = monitor(
                platform.url,
                platform.owner,
                open_benchmarks()[1],
                port=_monitor_port(),
                find_agent=agent_choice.service_url,
            )
            listening = await stack.enter_async_context(serving)
            people.print(f"monitor: {listening.url}")
        except KgymError as error:  # jobs run without pages
            people.print(f"no monitor: {error}")
        settle()
        while platform.lives:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(1)
        platform.wait()


def _monitor_port() -> int:
    """Return the monitor's port; 0, for any, if it is the default one and taken."""
    from kgym.web.server import LOOPBACK, listen  # noqa: PLC0415 - as above

    port = settings().monitor_port
    # A port that was chosen must be used or fail; the default one may give way to a second
    # platform.
    if port == Settings.monitor_port.default:
        try:
            listen(LOOPBACK, port).close()
        except UserError:
            return 0
    return port


def _distributed() -> None:
    from kgym.host import process_logs  # noqa: PLC0415
    from kgym_cli.platforms.distributed_platform import Distributed  # noqa: PLC0415

    # Only restarts of parts are worth a line here.
    process_logs.configure(level=logging.WARNING)  # each part has a log of its own
    chosen = settings()
    with Distributed(
        usable_data_folder(), port=chosen.port, monitor_port=_monitor_port()
    ) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        people.print(f"monitor: {platform.monitor_url}")
        for server in (platform.database, platform.broker):
            people.print(f"{server.name}: {server.host}:{server.port}", style="dim")
        for worker in platform.workers:
            people.print(f"{worker.name}: log in {worker.log}", style="dim")
        platform.keep()
