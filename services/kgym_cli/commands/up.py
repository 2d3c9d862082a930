"""`kgym up`."""

import logging

import click

from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.scheduler_choice import syzkaller_folder, usable_data_folder

PORT = 8420


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option(
    "--distributed",
    is_flag=True,
    help="PostgreSQL, RabbitMQ, scheduler and workers as processes of their own.",
)
def up(port: int, distributed: bool) -> None:
    """Start scheduler and workers on this machine; Ctrl-C stops them, jobs are kept."""
    extras.require(*extras.ONE_MACHINE)
    # Its imports take longer than a command that needs no platform of its own.
    from kgym.host import process_logs  # noqa: PLC0415

    process_logs.configure()
    if distributed:
        _distributed(port)
        return
    from kgym_cli.embedded_platform import Platform  # noqa: PLC0415

    with Platform(usable_data_folder(), port=port, syzkaller=syzkaller_folder()) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        people.print(f"data: {usable_data_folder()}", style="dim", markup=False)
        platform.wait()


def _distributed(port: int) -> None:
    from kgym.host import process_logs  # noqa: PLC0415
    from kgym_cli.distributed_platform import Distributed  # noqa: PLC0415

    process_logs.configure(level=logging.WARNING)  # each part has a log of its own
    with Distributed(usable_data_folder(), port=port) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        for server in (platform.database, platform.broker):
            people.print(f"{server.name}: {server.host}:{server.port}", style="dim")
        for worker in platform.workers:
            people.print(f"{worker.name}: log in {worker.log}", style="dim", markup=False)
        platform.keep()
