"""What commands print for training: conversations of agents as JSON Lines."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import click

from kgym.bench.training import FORMS, Conversation
from kgym_cli.output import people

_FORM = "Supervised examples (OpenAI chat, ShareGPT), or episodes with rewards."
_RESOLVED = "Only conversations that led to a fix without obstacles."


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that print conversations."""
    form = click.option(
        "--form", type=click.Choice(list(FORMS)), default="openai", show_default=True, help=_FORM
    )
    resolved = click.option("--resolved", is_flag=True, help=_RESOLVED)
    return form(resolved(command))


def print_conversations(talks: Iterable[Conversation], form: str, resolved: bool) -> None:
    """Print conversations, each as a line, and on stderr how many they are."""
    printed = 0
    for talk in talks:
        if not resolved or (talk.reward is not None and talk.reward.clean):
            click.echo(json.dumps(FORMS[form](talk)))
            printed += 1
    people.print(f"{printed} conversations")
