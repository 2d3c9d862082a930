"""`kgym monitor`."""

import asyncio

import click

from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.scheduler_choice import address
from kgym_cli.settings import Settings, options_of, settings


@click.command()
@options_of("monitor")
def monitor() -> None:
    """Serve web pages of jobs, their steps and workers, which change as these do.

    Pages show what the scheduler's REST interface says. Readers log in with a token of the
    scheduler; where it needs none, nobody does. The monitor's own, --token, has to allow reading.
    Any address but loopback needs tokens, and https in front.
    """
    extras.require("monitor")
    # Its imports take longer than a command that needs none of this.
    import uvloop  # noqa: PLC0415

    from kgym_cli.process import run  # noqa: PLC0415

    with address(work=False) as (url, token):
        run(_serve(settings(), url, token), uvloop.new_event_loop)


async def _serve(chosen: Settings, url: str, token: str | None) -> None:
    from kgym_monitor.server import monitor as serving  # noqa: PLC0415 - as above

    async with serving(url, token, chosen.host, chosen.monitor_port) as listening:
        people.print(f"monitor: {listening.url_here}  scheduler: {url}", markup=False)
        await asyncio.Event().wait()
