"""`kgym bug` and `kgym demo`."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kgym import bug as bugs
from kgym_cli import trial
from kgym_cli.connect import scheduler
from kgym_cli.follow import follow
from kgym_cli.output import json_option, leave, people, print_json, tables

DEMO_BUG = "watch-queue-filter"
_STYLES = {"same_crash": "red", "other_crash": "magenta", "no_crash": "green"}
fix_option = click.option(
    "--fix", type=click.Path(path_type=Path), help="A unified diff to try instead of the known fix."
)


@click.group()
def bug() -> None:
    """List, show and reproduce bugs: shipped ones by name, your own by their folder."""


@bug.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the shipped bugs."""
    known = [bugs.load(name) for name in bugs.names()]
    if as_json:
        print_json([_about(one) for one in known])
        return
    table = Table("name", "class", "title", box=None)
    for one in known:
        table.add_row(one.name, one.file.kind, one.file.title)
    tables.print(table)


@bug.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what is known about a bug."""
    one = bugs.load(name)
    if as_json:
        print_json({**_about(one), "job": one.job(one.fix).model_dump(mode="json")})
        return
    tables.print(f"[bold]{one.name}[/]: {one.file.title}\n\n{one.file.summary.strip()}\n")
    for reference in one.file.references:
        tables.print(f"  {reference}", markup=False)
    tables.print(f"\nfiles: {', '.join(one.file.files)}")
    tables.print(f"reproducer: {one.file.reproducer.file}, {one.file.reproducer.time:g} s")


@bug.command()
@click.argument("name")
@fix_option
@click.option("--no-fix", is_flag=True, help="Only show the bug; try no fix.")
@json_option
def reproduce(name: str, fix: Path | None, no_fix: bool, as_json: bool) -> None:
    """Crash the kernel with the bug, then show whether the fix holds.

    NAME is a shipped bug or the folder of a bundle. The exit status is 0 if the
    bug shows and the fix resolves it, 1 if a verdict says otherwise, 2 for bad
    input, 3 if there is no verdict.
    """
    _try(bugs.load(name), fix, no_fix=no_fix, as_json=as_json)


@click.command()
@fix_option
@click.option("--server", help="URL of a scheduler, instead of one on this machine.")
@json_option
def demo(fix: Path | None, server: str | None, as_json: bool) -> None:
    """Show a real bug: build the kernel, crash it, fix it, prove the fix."""
    if server is not None:
        click.get_current_context().find_root().params["server"] = server
    one = bugs.load(DEMO_BUG)
    people.print(f"[bold]{one.file.title}[/] ({one.file.references[0]})")
    people.print(one.file.summary.strip() + "\n", style="dim")
    _try(one, fix, no_fix=False, as_json=as_json)


def _try(one: bugs.Bug, fix: Path | None, *, no_fix: bool, as_json: bool) -> None:
    patch = trial.patch_file(fix) if fix is not None else one.fix
    with scheduler(work=True) as client:
        job, taken_up = trial.submit(client, one.job(None if no_fix else patch))
        people.print(f"job {job.id}" + (", begun earlier, goes on" if taken_up else ""))
        try:
            job = follow(client, job)
        except KeyboardInterrupt:
            people.print(f"interrupted; job {job.id} is kept: `kgym job wait {job.id}` resumes it")
            raise
    outcome = trial.summary(one, job)
    _print(outcome)
    if as_json:
        print_json(outcome)
    leave(trial.exit_status(job, outcome))


def _print(outcome: dict[str, Any]) -> None:
    for side in ("before", "after"):
        if (one := outcome[side]) is not None:
            style = _STYLES.get(one["verdict"], "yellow")
            people.print(f"{side:>7}: [bold {style}]{one['verdict']}[/]", end="  ")
            people.print(one["reason"], markup=False)
    if outcome["after"] is not None:
        word = "[bold green]resolved" if outcome["resolved"] else "[bold red]not resolved"
        people.print(f"{word}[/] in {outcome['seconds']['total']:.0f} s")


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
