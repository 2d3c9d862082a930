"""How commands answer: JSON for programs on stdout, words for people, and exit statuses."""

import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kgym.errors import KgymError, UserError

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return text that a terminal only shows: without control characters but newline and tab.

    Logs, reports and findings hold what patches, programs and guests said; an escape
    sequence in it could rewrite the screen, its title or the clipboard.
    """
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


class Terminal(Console):
    """A console that shows foreign text as it is: its control characters are `plain`.

    What foreign text means as markup has to be escaped where it stands beside markup of ours.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments, with the escape sequences of our own styles only."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


people = Terminal(stderr=True, highlight=False, soft_wrap=True)
"""Progress and remarks; stdout carries nothing but the result."""
tables = Terminal(highlight=False)


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


def echo(text: str, *, end: str = "\n") -> None:
    """Print foreign text on stdout."""
    click.echo(plain(text) + end, nl=False)


def leave(status: Exit) -> NoReturn:
    """End the command with this status."""
    click.get_current_context().exit(status)


def status_of(error: KgymError) -> Exit:
    """Return the exit status that tells whose error it is."""
    return Exit.USER if isinstance(error, UserError) else Exit.INFRASTRUCTURE
