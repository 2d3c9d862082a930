"""What commands print for training: conversations of agents as JSON Lines."""

import json
from collections.abc import Iterable

import click

from kgym.bench.training import FORMS, Conversation
from kgym_cli.inputs.parameters import parameters
from kgym_cli.output import people

# Options of commands that print conversations.
training_options = parameters(
    click.option(
        "--form",
        type=click.Choice(list(FORMS)),
        default="openai",
        help="Supervised examples (OpenAI chat, ShareGPT), or episodes with rewards.",
    ),
    click.option(
        "--resolved", is_flag=True, help="Only conversations that led to a fix without obstacles."
    ),
)


def print_conversations(talks: Iterable[Conversation], form: str, resolved: bool) -> None:
    """Print conversations, each as a line, and on stderr how many they are."""
    printed = 0
    for talk in talks:
        if not resolved or (talk.reward is not None and talk.reward.clean):
            click.echo(json.dumps(FORMS[form](talk)))
            printed += 1
    people.print(f"{printed} conversations")
