"""`kgym bug source`."""

from pathlib import Path

import click

from kgym.bugs import bundle as bugs
from kgym.bugs import tree_changes
from kgym_cli.inputs.parameters import PATH, complete_bug
from kgym_cli.output import json_option, people, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import settings


class SourceAnswer(Answer):
    """Output of `bug source --json`."""

    bug: str
    folder: Path
    source: str


@click.command()
@click.argument("name", shell_complete=complete_bug)
@click.argument("folder", type=PATH)
@json_option(SourceAnswer)
def source(name: str, folder: Path, as_json: bool) -> None:
    """Write a bug's kernel source to a new FOLDER, as a Git repository.

    It is the tree that builds see, in one commit: the published source, what builds add, and the
    bug. Edit it, then take the patch with `git diff > my.patch`, or call `run_kernel` there.
    """
    bug = bugs.load(name)
    people.print("the first source of a kernel takes minutes, others seconds", style="dim")
    from kgym_cli.bugs.source_tree import write  # noqa: PLC0415 - its imports take 0.3 s

    identity = write(bug, folder, settings().data)
    shipped = bugs.is_shipped(name)
    # So that `run_kernel`, called in the tree, needs no --bug.
    tree_changes.remember(folder, name if shipped else str(Path(name).absolute()))
    if printed_json(SourceAnswer(bug=bug.name, folder=folder.absolute(), source=identity), as_json):
        return
    results.print(f"{folder}: {identity}")
    results.print(f"edit it, then: git -C {folder} diff > my.patch; kgym check {name} my.patch")
