"""How commands answer: JSON for programs on stdout, words for people, and exit statuses."""

import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console

from kgym.errors import KgymError, UserError

people = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress and remarks; stdout carries nothing but the result."""
tables = Console(highlight=False)


class Exit(IntEnum):
    """What the exit status of a command means."""

    OK = 0
    NEGATIVE = 1
    USER = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130


_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Add --json to a command that prints a result."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(
        command
    )


def print_json(value: object) -> None:
    """Print one JSON value as one line."""
    click.echo(json.dumps(value, default=str))


def leave(status: Exit) -> NoReturn:
    """End the command with this status."""
    click.get_current_context().exit(status)


def status_of(error: KgymError) -> Exit:
    """Return the exit status that tells whose error it is."""
    return Exit.USER if isinstance(error, UserError) else Exit.INFRASTRUCTURE
