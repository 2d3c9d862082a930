"""Parameters of the command line: files, folders, times, names of groups and of bugs."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from pydantic import TypeAdapter

from kgym.api.faults import refused_at
from kgym.api.jobs import GroupName
from kgym.bugs import shipped

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
PATH_OR_STDIN = click.Path(path_type=Path, allow_dash=True)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
SECONDS = click.FloatRange(0, 86400, min_open=True)


def parameters(*of: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options and arguments, in this order."""

    def add(command: Command) -> Command:
        for parameter in reversed(of):
            command = parameter(command)
        return command

    return add


class Moment(click.ParamType[datetime]):
    """A time such as `2026-01-31`, `2026-01-31 12:00:00` or `2026-01-31T12:00Z`.

    Without a zone, it is local time, which commands print.
    """

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the time with its zone."""
        try:
            return datetime.fromisoformat(str(value).strip()).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2026-01-31 12:00:00", param, ctx)


def group_name(name: str) -> str:
    """Return the group's name; raise UserError `bad_option` if it is invalid."""
    with refused_at(f"--name {name!r}", "bad_option"):
        return TypeAdapter(GroupName).validate_python(name)


def complete_bug(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the name of a shipped bug, or else a folder."""
    # From an index: loading the bundles would take longer than a shell waits.
    matches = [CompletionItem(name) for name in shipped.names() if name.startswith(begun)]
    return matches or [CompletionItem(begun, type="dir")]
