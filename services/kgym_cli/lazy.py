"""Command groups that import subcommands on demand: importing all of them takes a second."""

import builtins
from collections.abc import Mapping
from importlib import import_module
from keyword import iskeyword
from typing import Any, NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from kgym_cli import help_pages
from kgym_cli.settings import SettingOption, Settings


class Lazy(NamedTuple):
    """A command in a module of `commands`, and its summary for --help."""

    module: str
    summary: str
    remote: bool = False
    """Whether it talks to a scheduler and so takes --server and --token."""


class LazyGroup(click.Group):
    """A group with `lazy` commands."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        # The group's path, without `kgym`.
        self.path = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted([*self.commands, *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        # Imported on demand: `kgym --help` and completion import no command.
        module = import_module(f"kgym_cli.commands.{self.lazy[cmd_name].module}")
        command = cast(click.Command, getattr(module, _function(cmd_name)))
        if self.lazy[cmd_name].remote:
            reachable(command)
        path = f"{self.path} {cmd_name}".strip()
        if isinstance(command, LazyGroup):
            command.path = path
        help_pages.complete(command, path)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and options without importing any."""
        named = [
            CompletionItem(name, help=summary)
            for name, summary in self._summaries().items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write summaries without importing commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries().items()))

    def _summaries(self) -> dict[str, str]:
        own = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        return dict(
            sorted((own | {name: lazy.summary for name, lazy in self.lazy.items()}).items())
        )


def _function(command: str) -> str:
    """Return the name of a command's function: `run_kernel`, or `import_` for a reserved word."""
    name = command.replace("-", "_")
    return f"{name}_" if iskeyword(name) or hasattr(builtins, name) else name


def reachable(command: click.Command) -> None:
    """Add --server and --token to a command and its subcommands."""
    known = {parameter.name for parameter in command.params}
    own = [
        SettingOption(setting)
        for setting in (Settings.server, Settings.token)
        if setting.name not in known
    ]
    command.params.extend(own)
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            reachable(subcommand)
