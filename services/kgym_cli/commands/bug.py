"""`kgym bug`: what is known about bugs; what is done with them is imported when it is asked for."""

from typing import Any

import click
from pydantic import Field
from rich.markup import escape

from kgym.api.jobs import JobRequest
from kgym.bugs import bundle as bugs
from kgym_cli import known_bugs
from kgym_cli.answer import Answer
from kgym_cli.lazy import Lazy, LazyGroup
from kgym_cli.output import json_option, print_json, print_table, results


class BugAnswer(Answer):
    """What is known about a bug."""

    name: str
    title: str
    alt_titles: list[str]
    class_: str = Field(alias="class", serialization_alias="class")
    summary: str
    references: list[str]
    files: list[str]
    has_fix: bool


class BugWithJob(BugAnswer):
    """A bug, and the job of its trial, as POST /v1/jobs takes it."""

    job: JobRequest


@click.group(
    cls=LazyGroup,
    lazy={
        "calibrate": Lazy("bug_trial", "Measure how often and how soon a bug shows.", remote=True),
        "new": Lazy(
            "bug_new", "Write a bundle for a bug of your own, and run it once.", remote=True
        ),
        "reproduce": Lazy(
            "bug_trial", "Crash the kernel with the bug, then try the fix.", remote=True
        ),
        "source": Lazy(
            "bug_source", "Write a bug's kernel source as a Git repository.", remote=True
        ),
    },
)
def bug() -> None:
    """List, show and reproduce bugs: shipped ones by name, your own by their folder."""


@bug.command("list")
@json_option(list[BugAnswer])
def list_(as_json: bool) -> None:
    """List the shipped bugs."""
    known = [bugs.load(name) for name in bugs.names()]
    if as_json:
        print_json([BugAnswer(**_about(one)) for one in known])
        return
    rows = ((one.name, one.file.kind, one.file.title) for one in known)
    print_table("name", "class", "title", rows=(list(map(escape, row)) for row in rows))


@bug.command()
@click.argument("name", shell_complete=known_bugs.complete)
@json_option(BugWithJob)
def show(name: str, as_json: bool) -> None:
    """Show what is known about a bug."""
    one = bugs.load(name)
    if as_json:
        print_json(BugWithJob(**_about(one), job=one.job(one.fix)))
        return
    about = escape(f"{one.file.title}\n\n{one.file.summary.strip()}\n")
    results.print(f"[bold]{escape(one.name)}[/]: {about}")
    for reference in one.file.references:
        results.print(f"  {reference}", markup=False)
    results.print(f"\nfiles: {', '.join(one.file.files)}", markup=False)
    program = one.file.reproducer
    results.print(f"reproducer: {program.file}, {program.time:g} s", markup=False)


def _about(one: bugs.Bug) -> dict[str, Any]:
    file = one.file
    return {
        "name": one.name,
        "title": file.title,
        "alt_titles": file.alt_titles,
        "class": file.kind,
        "summary": file.summary.strip(),
        "references": file.references,
        "files": file.files,
        "has_fix": one.fix is not None,
    }
