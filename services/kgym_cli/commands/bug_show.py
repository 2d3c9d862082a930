"""`kgym bug show`."""

import click
from rich.markup import escape

from kgym.api.jobs import JobRequest
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug
from kgym_cli.commands.bug import BugAnswer
from kgym_cli.inputs.parameters import complete_bug
from kgym_cli.output import json_option, print_json, results


class BugWithJob(BugAnswer):
    """A bug, and the job of its trial, as POST /v1/jobs takes it."""

    job: JobRequest


@click.command()
@click.argument("name", shell_complete=complete_bug)
@json_option(BugWithJob)
def show(name: str, as_json: bool) -> None:
    """Show what is known about a bug."""
    one = bugs.load(name)
    if as_json:
        print_json(_answer(one))
        return
    about = escape(f"{one.file.title}\n\n{one.file.summary.strip()}\n")
    results.print(f"[bold]{escape(one.name)}[/]: {about}")
    for reference in one.file.references:
        results.print(f"  {reference}", markup=False)
    results.print(f"\nfiles: {', '.join(one.file.files)}", markup=False)
    program = one.file.reproducer
    results.print(f"reproducer: {program.file}, {program.time:g} s", markup=False)


def _answer(one: Bug) -> BugWithJob:
    file = one.file
    about = {
        "name": one.name,
        "title": file.title,
        "alt_titles": file.alt_titles,
        "class": file.kind,
        "summary": file.summary.strip(),
        "references": file.references,
        "files": file.files,
        "has_fix": one.fix is not None,
    }
    return BugWithJob(**about, job=one.job(one.fix))
