"""`kgym monitor`."""

import asyncio
import logging
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import click

from kgym.errors import UserError
from kgym_cli import agent_choice, extras
from kgym_cli.answer import Answer
from kgym_cli.output import json_option, people, print_json, results
from kgym_cli.scheduler_choice import address
from kgym_cli.settings import Settings, options_of, settings


@click.group(invoke_without_command=True)
@options_of("monitor")
@click.pass_context
def monitor(context: click.Context) -> None:
    """Serve web pages of jobs, their steps and workers, which change as these do.

    Pages show what the scheduler's REST interface says. Readers log in with a token of the
    scheduler; where it needs none, nobody does. The monitor's own, --token, has to allow reading.
    Any address but loopback needs tokens, and https in front. Runs are those of the agent service
    at --agent, which is asked with the same tokens; without, of the one of this machine.
    """
    if context.invoked_subcommand is not None:
        return
    extras.require("monitor")
    # Its imports take longer than a command that needs none of this.
    import uvloop  # noqa: PLC0415

    from kgym_cli.process import run  # noqa: PLC0415

    with address(work=False) as (url, token):
        run(_serve(settings(), url, token), uvloop.new_event_loop)


class PictureAnswer(Answer):
    """A page, and its PNG, as `monitor shoot --json` prints them: sizes in pixels and bytes."""

    page: str
    path: str
    file: Path
    width: int
    height: int
    size: int


@monitor.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option(
    "--width",
    type=click.IntRange(320, 3840),
    default=1280,
    show_default=True,
    help="Of the browser's window, in pixels.",
)
@click.option(
    "--height",
    type=click.IntRange(500, 10_000),
    default=1600,
    show_default=True,
    help="Of a picture, at most: what is below is left out.",
)
@click.option("--page", "names", multiple=True, help="Only this page; may be given many times.")
@json_option(list[PictureAnswer])
def shoot(
    folder: Path,
    theme: Literal["light", "dark"],
    width: int,
    height: int,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a PNG of each page into DIR, from demo data.

    It starts a platform of its own, in a temporary folder, whose steps' results are given: no
    kernel is built. The pictures are taken by the installed Chromium.
    """
    if find_spec("kgym_dev") is None or find_spec("playwright") is None:
        raise UserError(
            "extra_missing",
            "the demo data, and Playwright for Chromium, are for development, and part of the"
            " checkout alone: `./run kgym monitor shoot DIR`",
        )
    # As above; and they are not in the wheel.
    from kgym.host import process_logs  # noqa: PLC0415
    from kgym_cli.demo_site import demo_site, filled  # noqa: PLC0415
    from kgym_dev import monitor_pages, screenshots  # noqa: PLC0415

    if unknown := set(names) - set(monitor_pages.NAMES):
        known = ", ".join(monitor_pages.NAMES)
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are: {known}")
    process_logs.configure(level=logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    answers = []
    screenshots.chromium()  # which may be missing
    with (
        tempfile.TemporaryDirectory() as data,
        demo_site(Path(data)) as site,
    ):
        people.print("making the demo data", style="dim")
        wanted = [page for page in filled(site) if not names or page.name in names]
        for one in screenshots.shoot(
            site.url, wanted, folder, theme=theme, width=width, height=height
        ):
            answers.append(
                PictureAnswer(
                    page=one.page.name,
                    path=one.page.path,
                    file=one.file,
                    width=one.width,
                    height=one.height,
                    size=one.file.stat().st_size,
                )
            )
            if not as_json:
                results.print(f"{one.file}: {one.page.told}", markup=False)
    if as_json:
        print_json(answers)


async def _serve(chosen: Settings, url: str, token: str | None) -> None:
    from kgym_cli.process import settle  # noqa: PLC0415 - as above
    from kgym_monitor.server import monitor as serving  # noqa: PLC0415

    async with serving(
        url, token, chosen.host, chosen.monitor_port, agent_choice.service_url
    ) as listening:
        settle()
        people.print(f"monitor: {listening.url_here}  scheduler: {url}", markup=False)
        await asyncio.Event().wait()
