"""`kgym up`."""

import logging
from importlib.util import find_spec

import click

from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.scheduler_choice import usable_data_folder
from kgym_cli.settings import options_of, settings


@click.command()
@options_of("up")
@click.option(
    "--distributed",
    is_flag=True,
    help="PostgreSQL, RabbitMQ, scheduler and workers as processes of their own.",
)
def up(distributed: bool) -> None:
    """Start scheduler and workers on this machine; Ctrl-C stops them, jobs are kept."""
    extras.require(*extras.ONE_MACHINE)
    # Its imports take longer than a command that needs no platform of its own.
    from kgym.host import process_logs  # noqa: PLC0415

    process_logs.configure()
    if distributed:
        _distributed()
        return
    from kgym_cli.embedded_platform import Platform  # noqa: PLC0415

    chosen = settings()
    with Platform(usable_data_folder(), port=chosen.port, syzkaller=chosen.syzkaller) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        people.print(f"data: {usable_data_folder()}", style="dim", markup=False)
        platform.wait()


def _distributed() -> None:
    if find_spec("kgym_dev") is None:
        raise UserError(
            "extra_missing",
            "--distributed starts servers for development, and is part of the checkout alone"
            " (`./run up --distributed`); here, use `kgym scheduler` and `kgym worker`",
        )
    from kgym.host import process_logs  # noqa: PLC0415
    from kgym_cli.distributed_platform import Distributed  # noqa: PLC0415

    process_logs.configure(level=logging.WARNING)  # each part has a log of its own
    with Distributed(usable_data_folder(), port=settings().port) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        for server in (platform.database, platform.broker):
            people.print(f"{server.name}: {server.host}:{server.port}", style="dim")
        for worker in platform.workers:
            people.print(f"{worker.name}: log in {worker.log}", style="dim", markup=False)
        platform.keep()
