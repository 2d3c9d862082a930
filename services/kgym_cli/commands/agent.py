"""`kgym agent`."""

import asyncio

import click

from kgym_cli import extras
from kgym_cli.agents.agent_choice import FOLDER, hosted
from kgym_cli.agents.agent_models import allowed
from kgym_cli.output import people
from kgym_cli.platforms import running_platform
from kgym_cli.platforms.scheduler_choice import address, usable_data_folder
from kgym_cli.settings import Settings, options_of, settings


@click.command()
@options_of("agent")
def agent() -> None:
    """Search for fixes on behalf of others: for `kgym fix`, and REST at /v1/runs.

    Callers use the scheduler's tokens, which the agent has the scheduler check. It submits its own
    jobs with --token and asks models with its own keys. Runs that are under way when it stops are
    interrupted; continue them with `kgym run resume`. Any address but loopback needs tokens.
    """
    extras.require("agent")
    # Imported late: these imports take longer than a whole command that needs none of them.
    import uvloop  # noqa: PLC0415

    from kgym_cli.platforms.process import run  # noqa: PLC0415

    with address(work=True) as (url, token):
        run(_serve(settings(), url, token), uvloop.new_event_loop)


async def _serve(chosen: Settings, url: str, token: str | None) -> None:
    from kgym.web.request_limits import RequestLimits, burst  # noqa: PLC0415 - as above
    from kgym.web.scheduler_tokens import SchedulerTokens  # noqa: PLC0415
    from kgym.web.server import serve  # noqa: PLC0415
    from kgym_cli.platforms.process import settle  # noqa: PLC0415
    from kgym_crashfixer.api.app import create_app  # noqa: PLC0415

    limits = RequestLimits(
        requests_per_second=chosen.requests_per_second,
        burst=burst(chosen.requests_per_second),
        streams=chosen.streams,
    )
    folder = usable_data_folder() / FOLDER
    # Like a platform's data folder, the runs folder has one owner: two services would resume a run
    # twice.
    with await asyncio.to_thread(running_platform.take, folder) as lock:
        async with (
            hosted(url, token, allowed(chosen.agent_models)) as own,
            SchedulerTokens(url) as tokens,
            serve(create_app(own, tokens, limits), chosen.host, chosen.agent_port) as here,
        ):
            running_platform.announce(lock, running_platform.Running(here.url_here))
            settle()
            people.print(f"agent: {here.url_here}  scheduler: {url}")
            await asyncio.Event().wait()
