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
    """Serve live web pages of jobs, steps, workers, runs and benchmarks.

    Data comes from the scheduler's REST interface, from the agent service at --agent (by default
    this machine's), and from benchmarks published to --benchmarks. Readers log in with a token of
    the scheduler, if it needs tokens; the monitor's own, --token, must allow reading. Any address
    but loopback needs tokens, and an https proxy in front.
    """
    if context.invoked_subcommand is not None:
        return
    extras.require("monitor")
    # Imported late: these imports take longer than a whole command that needs none of them.
    import uvloop  # noqa: PLC0415

    from kgym_cli.platforms.process import run  # noqa: PLC0415

    with address(work=False) as (url, token):
        run(_serve(settings(), url, token), uvloop.new_event_loop)


class PictureAnswer(Answer):
    """A page and its PNG, for `monitor shoot --json`: sizes in pixels and bytes."""

    page: str
    path: str
    file: Path
    width: int
    height: int
    size: int


@monitor.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light")
@click.option(
    "--width",
    type=click.IntRange(320, 3840),
    default=1280,
    help="Width of the browser's window in pixels.",
)
@click.option(
    "--height",
    type=click.IntRange(500, 10_000),
    default=1600,
    help="Most height of a picture; the rest is cut off.",
)
@click.option("--page", "names", multiple=True, help="Only this page; may be repeated.")
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

    A temporary platform with prepared results is started: no kernel is built. The installed
    Chromium takes the pictures.
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
                results.print(f"{picture.file}: {description}")
    if as_json:
        print_json(answers)


def _pictures(checkout: Path, words: list[str]) -> Iterator[tuple[PictureAnswer, str]]:
    """Yield pictures and descriptions from the process `tests.demo.shoot`.

    Raises the KgymError that the process reports.
    """
    argv = [sys.executable, "-m", "tests.demo.shoot", *words]
    problem: KgymError | None = None
    with subprocess.Popen(argv, cwd=checkout, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                # The process reports errors as JSON lines, too, so that they keep their family and
                # reason.
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
        people.print(f"monitor: {listening.url_here}  scheduler: {url}")
        await asyncio.Event().wait()
