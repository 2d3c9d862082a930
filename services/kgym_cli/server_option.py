"""The options --server and --token, at any place on the command line."""

import click

_OPTIONS = {
    "server": "URL of a scheduler, instead of this machine's platform.",
    "token": "What `kgym token create` printed.",
}


def reachable(command: click.Command) -> None:
    """Let --server and --token stand behind the name of the command, and of its subcommands."""
    known = {parameter.name for parameter in command.params}
    for name, words in _OPTIONS.items():
        if name not in known:
            command.params.append(
                click.Option([f"--{name}"], help=words, expose_value=False, callback=_remember)
            )
    if isinstance(command, click.Group):
        for one in command.commands.values():
            reachable(one)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.find_root().params[str(parameter.name)] = value
