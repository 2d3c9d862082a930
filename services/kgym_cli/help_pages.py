"""Additions to --help: examples of each command, and environment variables."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import click

from kgym_cli.settings import ALL

# All variables, except those of `scheduler` or `worker` alone, which their own --help shows.
ENVIRONMENT = {
    setting.variable: setting.words
    for setting in ALL
    if len(setting.commands) != 1 or setting.commands[0] not in {"scheduler", "worker"}
}
# A block for each command: its path, then its examples, indented. A test parses each of them.
_FILE = Path(__file__).with_name("examples.txt")
OF_ALL = (
    "kgym demo",
    "kgym bug reproduce watch-queue-filter --fix my.patch --json",
    "kgym job list --state failed --since 2026-01-31",
    "kgym job fetch 7 'report-*'",
)
_FORM = "\b\n"  # click's mark: do not rewrap the following paragraph


def of_all() -> str:
    """Return the epilog of the list of commands."""
    names = max(map(len, ENVIRONMENT))
    variables = "\n".join(f"  {name:{names}}  {summary}" for name, summary in ENVIRONMENT.items())
    return f"{_FORM}Environment:\n{variables}\n\n{_examples(OF_ALL)}"


@cache
def examples() -> dict[str, list[str]]:
    """Return the examples by the command's path."""
    blocks = (block.splitlines() for block in _FILE.read_text().split("\n\n"))
    return {path: [line.strip() for line in lines] for path, *lines in blocks}


def complete(command: click.Command, path: str) -> None:
    """Add examples to the help of a command and its subcommands."""
    if path in examples():
        command.epilog = _examples(examples()[path])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            complete(below, f"{path} {name}")


def _examples(lines: Iterable[str]) -> str:
    return f"{_FORM}Examples:\n" + "\n".join(f"  {line}" for line in lines)
