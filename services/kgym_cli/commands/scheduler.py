"""`kgym scheduler`."""

import asyncio
import os
from typing import TYPE_CHECKING

import click

from kgym.api.worker_calls import LEASE_SECONDS
from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.scheduler_choice import data_folder, database_url

if TYPE_CHECKING:
    from kgym_scheduler.api.caller_limits import CallerLimits

PORT = 8420


@click.command()
@click.option("--database", envvar="KGYM_DATABASE", help="URL: postgresql+asyncpg://… or sqlite.")
@click.option("--bus", envvar="KGYM_BUS", help="URL: amqp://…; without, workers ask every second.")
@click.option("--storage", envvar="KGYM_STORAGE", help="Folder that all workers share.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option(
    "--lease",
    type=click.FloatRange(min=3.0),
    default=LEASE_SECONDS,
    show_default=True,
    help="Seconds after which a worker that is not heard of has lost its steps.",
)
@click.option(
    "--requests-per-second",
    type=click.FloatRange(min=0.1),
    default=3000,
    show_default=True,
    help="Of one caller: a token, or an address; twice as many at once after a pause.",
)
@click.option(
    "--streams",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Event streams that one caller can have open.",
)
@click.option(
    "--unfinished-jobs",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Jobs of one submitter that have not finished.",
)
@click.option(
    "--bytes-per-second",
    type=click.FloatRange(min=1),
    default=256 << 10,
    show_default=True,
    help="Of one submitter's jobs, in the long run; 4096 times as many at once after a pause.",
)
def scheduler(
    database: str | None,
    bus: str | None,
    storage: str | None,
    host: str,
    port: int,
    lease: float,
    requests_per_second: float,
    streams: int,
    unfinished_jobs: int,
    bytes_per_second: float,
) -> None:
    """Take jobs and hand their steps to workers; several can serve one database.

    The database is brought to its newest form first. Any address but loopback
    needs tokens (`kgym token create`).
    """
    extras.require("scheduler")
    # Its imports take longer than a command that needs none of this.
    import uvloop  # noqa: PLC0415

    from kgym_cli.composition import run  # noqa: PLC0415
    from kgym_scheduler.api.caller_limits import CallerLimits  # noqa: PLC0415

    burst = max(1, int(2 * requests_per_second))
    most = int(4096 * bytes_per_second)
    limits = CallerLimits(
        requests_per_second, burst, streams, unfinished_jobs, bytes_per_second, most
    )
    where = storage or str(data_folder() / "artifacts")
    main = _serve(database or database_url(), bus, where, host, port, lease, limits)
    run(main, uvloop.new_event_loop)


async def _serve(
    database: str,
    bus: str | None,
    storage: str,
    host: str,
    port: int,
    lease: float,
    limits: "CallerLimits",
) -> None:
    from kgym_cli.composition import open_bus, open_storage, settle  # noqa: PLC0415
    from kgym_scheduler.api.app import create_app  # noqa: PLC0415
    from kgym_scheduler.api.server import serve  # noqa: PLC0415
    from kgym_scheduler.database.connection import upgrade  # noqa: PLC0415
    from kgym_scheduler.job_store import JobStore  # noqa: PLC0415
    from kgym_scheduler.scheduler import Scheduler  # noqa: PLC0415

    await upgrade(database)
    async with (
        open_bus(bus) as opened,
        Scheduler(JobStore(database, lease), opened, open_storage(storage)) as running,
        serve(
            create_app(running, limits, os.environ.get("KGYM_OWNER_TOKEN")), host, port
        ) as address,
    ):
        settle()
        people.print(f"scheduler: {address.url}")
        await asyncio.Event().wait()
