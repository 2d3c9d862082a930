"""`kgym monitor`."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_cli import extras
from kgym_cli.agents import agent_choice
from kgym_cli.output import json_option, people, print_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import Settings, options_of, settings


@click.group(invoke_without_command=True)
@options_of("monitor")
@click.pass_context
def monitor(context: click.Context) -> None:
    """Serve web pages of jobs, their steps and workers, which change as these do.

    Pages show what the scheduler's REST interface says, and the benchmarks that were published to
    --benchmarks. Readers log in with a token of the
    scheduler; where it needs none, nobody does. The monitor's own, --token, has to allow reading.
    Any address but loopback needs tokens, and https in front. Runs are those of the agent service
    at --agent, which is asked with the same tokens; without, of the one of this machine.
    """
    if context.invoked_subcommand is not None:
        return
    extras.require("monitor")
    # Its imports take longer than a command that needs none of this.
    import uvloop  # noqa: PLC0415

    from kgym_cli.platforms.process import run  # noqa: PLC0415

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
    checkout = extras.require_checkout("the demo data")
    folder.mkdir(parents=True, exist_ok=True)
    answers = []
    with tempfile.TemporaryDirectory() as data:
        words = [str(folder.absolute()), "--data", data, "--theme", theme]
        words += ["--width", str(width), "--height", str(height)]
        for name in names:
            words += ["--page", name]
        for picture, description in _pictures(checkout, words):
            answers.append(picture)
            if not as_json:
                results.print(f"{picture.file}: {description}", markup=False)
    if as_json:
        print_json(answers)


def _pictures(checkout: Path, words: list[str]) -> Iterator[tuple[PictureAnswer, str]]:
    """Yield pictures and their descriptions, as `tests.demo.shoot` takes and prints them.

    Raises the KgymError that it reports.
    """
    argv = [sys.executable, "-m", "tests.demo.shoot", *words]
    problem: KgymError | None = None
    with subprocess.Popen(argv, cwd=checkout, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answer = json.loads(line)
                if "error" in answer:
                    kind = UserError if answer["cause"] == "user" else InfrastructureError
                    problem = kind(answer["error"], answer["message"])
                else:
                    yield PictureAnswer(**answer["picture"]), answer["description"]
        except BaseException:
            process.terminate()
            raise
    if problem is not None:
        raise problem
    if process.returncode:
        raise InfrastructureError(
            "page_not_shown", f"the process that takes pictures ended with {process.returncode}"
        )


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
