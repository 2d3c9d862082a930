"""Groups of commands that are imported when they are asked for: all of them take a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, cast

import click

from kgym_cli import commands
from kgym_cli.server_option import reachable


class Lazy(NamedTuple):
    """A command of its name in a module of `commands`, and what --help says of it."""

    module: str
    summary: str
    remote: bool = False
    """Whether it talks to a scheduler, and so takes --server and --token."""


class LazyGroup(click.Group):
    """A group some of whose commands are `lazy`."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted([*self.commands, *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, None if there is none of this name."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"{commands.__name__}.{self.lazy[cmd_name].module}")
        command = cast(click.Command, getattr(module, cmd_name))
        if self.lazy[cmd_name].remote:
            reachable(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command is, without importing it."""
        own = {name: one.get_short_help_str(100) for name, one in self.commands.items()}
        summaries = own | {name: one.summary for name, one in self.lazy.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(summaries.items()))
