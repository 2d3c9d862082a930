"""`kgym scheduler`."""

import asyncio
from typing import TYPE_CHECKING

import click

from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import database_url
from kgym_cli.settings import Settings, options_of, settings

if TYPE_CHECKING:
    from kgym_scheduler.api.caller_limits import CallerLimits


@click.command()
@options_of("scheduler")
def scheduler() -> None:
    """Accept jobs and hand their steps to workers; several schedulers can serve one database.

    The database is migrated first. Any address but loopback needs tokens (`kgym token create`).
    """
    extras.require("scheduler")
    # Imported late: these imports take longer than a whole command that needs none of them.
    # uvloop, with httptools, takes 20 % less time per job (`./run bench dispatch`).
    import uvloop  # noqa: PLC0415

    from kgym.web.request_limits import burst  # noqa: PLC0415
    from kgym_cli.platforms.process import run  # noqa: PLC0415
    from kgym_scheduler.api.caller_limits import CallerLimits  # noqa: PLC0415

    chosen = settings()
    limits = CallerLimits(
        requests_per_second=chosen.requests_per_second,
        burst=burst(chosen.requests_per_second),
        streams=chosen.streams,
        unfinished_jobs=chosen.unfinished_jobs,
        bytes_per_second=chosen.bytes_per_second,
        # A burst of 4,096 s of the sustained rate: a caller may upload one large artifact at full
        # speed, but cannot keep that up.
        bytes_at_once=int(4096 * chosen.bytes_per_second),
    )
    run(_serve(chosen, limits), uvloop.new_event_loop)


async def _serve(chosen: Settings, limits: "CallerLimits") -> None:
    from kgym.web.server import serve  # noqa: PLC0415
    from kgym_cli.platforms.composition import open_bus, open_storage  # noqa: PLC0415
    from kgym_cli.platforms.process import settle  # noqa: PLC0415
    from kgym_scheduler.api.app import create_app  # noqa: PLC0415
    from kgym_scheduler.database.connection import upgrade  # noqa: PLC0415
    from kgym_scheduler.job_store import JobStore  # noqa: PLC0415
    from kgym_scheduler.retention.upkeep import Upkeep  # noqa: PLC0415
    from kgym_scheduler.scheduler import Scheduler  # noqa: PLC0415
    from kgym_scheduler.source.sources import Sources  # noqa: PLC0415

    database = database_url()
    # Migrations run under a database lock, so several schedulers may start at once.
    await upgrade(database)
    storage = open_storage(chosen.storage, chosen.cache)
    async with (
        open_bus(chosen.bus) as opened,
        Scheduler(JobStore(database, chosen.lease), opened, storage) as scheduler,
        Upkeep(
            scheduler.store.database, storage, budget=chosen.disk_budget, days=chosen.artifact_days
        ).kept_up() as upkeep,
        Sources(storage, chosen.cache / "source") as sources,
        serve(
            create_app(scheduler, limits, chosen.owner_token, upkeep, sources),
            chosen.host,
            chosen.port,
        ) as address,
    ):
        settle()
        people.print(f"scheduler: {address.url}")
        await asyncio.Event().wait()
