"""The options --server and --token, at any place on the command line."""

import click

from kgym_cli.settings import SettingOption, Settings


def reachable(command: click.Command) -> None:
    """Let --server and --token stand behind the name of the command, and of its subcommands."""
    known = {parameter.name for parameter in command.params}
    own = [SettingOption(one) for one in (Settings.server, Settings.token) if one.name not in known]
    command.params.extend(own)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            reachable(one)
