"""`kgym monitor`."""

import asyncio

import click

from kgym_cli import extras
from kgym_cli.agents import agent_choice
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import Settings, options_of, settings


@click.command()
@options_of("monitor")
def monitor() -> None:
    """Serve live web pages of jobs, steps, workers, runs and benchmarks.

    Data comes from the scheduler's REST interface, from the agent service at --agent (by default
    this machine's), and from benchmarks published to --benchmarks. Readers log in with a token of
    the scheduler, if it needs tokens; the monitor's own, --token, must allow reading. Any address
    but loopback needs tokens, and an https proxy in front.
    """
    extras.require("monitor")
    # Imported late: these imports take longer than a whole command that needs none of them.
    import uvloop  # noqa: PLC0415

    from kgym_cli.platforms.process import run  # noqa: PLC0415

    with address(work=False) as (url, token):
        run(_serve(settings(), url, token), uvloop.new_event_loop)


async def _serve(chosen: Settings, url: str, token: str | None) -> None:
    from kgym_cli.platforms.composition import open_benchmarks  # noqa: PLC0415 - as above
    from kgym_cli.platforms.process import settle  # noqa: PLC0415
    from kgym_monitor.server import monitor as serving  # noqa: PLC0415

    _, benchmarks = open_benchmarks()
    async with serving(
        url, token, benchmarks, chosen.host, chosen.monitor_port, agent_choice.service_url
    ) as listening:
        settle()
        people.print(f"monitor: {listening.url_here}  scheduler: {url}", markup=False)
        await asyncio.Event().wait()
