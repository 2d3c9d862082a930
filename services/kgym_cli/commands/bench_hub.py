"""`kgym bench push` and `kgym bench pull`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym_cli import extras
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import json_option, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import options_of, settings

if TYPE_CHECKING:
    from kgym_cli.bench.hub import Hub


class HubAnswer(Answer):
    """A repository of the hub, and what changed in it, or in the folder."""

    repository: str
    commit: str
    changed: list[str] = Field(description="names of files")


repository_argument = click.argument("repository", metavar="OWNER/NAME")


@click.command()
@options_of("bench push")
@dataset_argument
@repository_argument
@click.option("--private", is_flag=True, help="If it is new, show it to its owner only.")
@json_option(HubAnswer)
def push(folder: Path, repository: str, private: bool, as_json: bool) -> None:
    """Push the dataset or the results in DIR to Hugging Face's hub.

    The files of a dataset, attempts and failed attempts, manifest.json and a card (README.md) with
    the figures become one commit. A repeated push changes nothing. HF_TOKEN is the token.
    """
    extras.require("bench")
    hub = _hub(repository)
    _show(hub.page, *asyncio.run(hub.push(folder, private=private)), as_json)


@click.command()
@options_of("bench pull")
@repository_argument
@click.argument("into", metavar="DIR", type=FOLDER)
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
@json_option(HubAnswer)
def pull(repository: str, into: Path, revision: str, as_json: bool) -> None:
    """Pull a dataset or results, as `bench push` wrote them, into DIR.

    DIR is a new folder. All digests are checked; `bench verify DIR` then tries a sample of the
    patches again.
    """
    extras.require("bench")
    hub = _hub(repository)
    _show(hub.page, *asyncio.run(hub.pull(revision, into)), as_json)


def _hub(repository: str) -> "Hub":
    from kgym_cli.bench import hub  # noqa: PLC0415 - needs the extra `bench`

    return hub.Hub(settings().hub, repository, settings().environment.get("HF_TOKEN"))


def _show(page: str, commit: str, changed: list[str], as_json: bool) -> None:
    if not printed_json(HubAnswer(repository=page, commit=commit, changed=changed), as_json):
        results.print(f"{page} {commit[:12]}: {', '.join(changed) or 'no change'}", markup=False)
