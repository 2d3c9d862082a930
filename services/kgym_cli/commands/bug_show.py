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
    """A bug, and the job of its trial, as a body of POST /v1/jobs."""

    job: JobRequest


@click.command()
@click.argument("name", shell_complete=complete_bug)
@json_option(BugWithJob)
def show(name: str, as_json: bool) -> None:
    """Show facts about a bug."""
    bug = bugs.load(name)
    if as_json:
        print_json(_answer(bug))
        return
    about = escape(f"{bug.file.title}\n\n{bug.file.summary.strip()}\n")
    results.print(f"[bold]{escape(bug.name)}[/]: {about}")
    for reference in bug.file.references:
        results.print(f"  {reference}", markup=False)
    results.print(f"\nfiles: {', '.join(bug.file.files)}", markup=False)
    program = bug.file.reproducer
    results.print(f"reproducer: {program.file}, {program.time:g} s", markup=False)


def _answer(bug: Bug) -> BugWithJob:
    file = bug.file
    about = {
        "name": bug.name,
        "title": file.title,
        "alt_titles": file.alt_titles,
        "class": file.kind,
        "summary": file.summary.strip(),
        "references": file.references,
        "files": file.files,
        "has_fix": bug.fix is not None,
    }
    return BugWithJob(**about, job=bug.job(bug.fix))
