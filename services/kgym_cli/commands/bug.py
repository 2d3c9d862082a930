"""`kgym bug`: the list of bugs. Other subcommands are imported on demand."""

from dataclasses import asdict

import click
from pydantic import Field
from rich.markup import escape

from kgym.bugs import shipped
from kgym_cli.lazy import Lazy, LazyGroup
from kgym_cli.output import json_option, print_table, printed_json
from kgym_cli.output.answer import Answer


class BugAnswer(Answer):
    """Facts about a bug."""

    name: str
    title: str
    alt_titles: list[str]
    class_: str = Field(alias="class", serialization_alias="class")
    summary: str
    references: list[str]
    files: list[str]
    has_fix: bool


@click.group(
    cls=LazyGroup,
    lazy={
        "calibrate": Lazy(
            "bug_trial", "Measure how often and how soon a bug reproduces.", remote=True
        ),
        "new": Lazy("bug_new", "Write a bundle for your own bug and run it once.", remote=True),
        "port": Lazy("bug_port", "Reintroduce fixed bugs on other kernels.", remote=True),
        "reproduce": Lazy(
            "bug_trial", "Crash the kernel with a bug, then test the fix.", remote=True
        ),
        "show": Lazy("bug_show", "Show facts about a bug."),
        "source": Lazy("bug_show", "Write a bug's kernel source as a Git repository.", remote=True),
    },
)
def bug() -> None:
    """List, show and reproduce bugs: shipped ones by name, your own by their folder."""


@bug.command("list")
@json_option(list[BugAnswer])
def list_(as_json: bool) -> None:
    """List the shipped bugs."""
    known = shipped.shipped()
    if printed_json([BugAnswer(**fields(shipped_bug)) for shipped_bug in known], as_json):
        return
    rows = ((shipped_bug.name, shipped_bug.kind, shipped_bug.title) for shipped_bug in known)
    print_table("name", "class", "title", rows=(list(map(escape, row)) for row in rows))


def fields(bug: shipped.ShippedBug) -> dict[str, object]:
    """Return the fields of a bug's answer."""
    return {"class" if name == "kind" else name: value for name, value in asdict(bug).items()}
