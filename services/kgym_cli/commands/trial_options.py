"""Options of the commands that try a fix."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kgym.bugs.calibration import CONFIDENCES

Command = TypeVar("Command", bound=Callable[..., Any])
accept_option = click.option(
    "--accept-findings",
    metavar="REASON,…",
    default="",
    help="Findings that shall not stand in the way, by their reason; `all` for every one.",
)


def effort_options(command: Command) -> Command:
    """Add what says how much is done to prove a fix: --confidence, --instances and --time."""
    for option in (
        click.option(
            "--time", type=click.FloatRange(0, 86400, min_open=True), help="Seconds on each."
        ),
        click.option(
            "--instances", type=click.IntRange(1, 1000), help="VMs that a fix has to survive."
        ),
        click.option(
            "--confidence",
            type=click.FloatRange(0.5, 0.9999),
            default=CONFIDENCES[0],
            show_default=True,
            help="How sure to be of a fix.",
        ),
    ):
        command = option(command)
    return command
