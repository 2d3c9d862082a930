"""Completion of bugs on the command line: the shipped ones by name, others by their folder."""

import click
from click.shell_completion import CompletionItem

from kgym.bugs import shipped


def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names that go on like this, or else folders."""
    found = [CompletionItem(name) for name in shipped.names() if name.startswith(begun)]
    return found or [CompletionItem(begun, type="dir")]
