"""`kgym group`."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from kgym.api import csv_text
from kgym.api.bulk import Aborted
from kgym.api.groups import GroupFilter, GroupView
from kgym.api.jobs import GroupName, Submitter
from kgym.api.patch_rows import PatchRow
from kgym_cli.jobs.outcome_table import HEADS, cells, counted
from kgym_cli.output import json_option, people, print_json, print_table, printed_json, results
from kgym_cli.platforms.scheduler_choice import scheduler


def _valid(kind: Any) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a click callback that validates a value of this type."""
    adapter: TypeAdapter[str] = TypeAdapter(kind)

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else adapter.validate_python(value)
        except ValidationError as error:
            raise click.BadParameter(error.errors()[0]["msg"]) from error

    return check


# Patches that `kgym group show` lists.
_FIRST = 50
_name_argument = click.argument("name", callback=_valid(GroupName))
_submitter_option = click.option(
    "--submitter", callback=_valid(Submitter), help="Owner of the group.  [default: you]"
)


@click.group()
def group() -> None:
    """List groups of jobs, show and export their patches, abort them.

    A sweep makes a group; so does every job with a `group`. A group is as old as its first job.
    """


@group.command("list")
@click.option("--mine", is_flag=True, help="Only your own groups.")
@click.option("--limit", type=click.IntRange(1), default=20)
@json_option(list[GroupView])
def list_(mine: bool, limit: int, as_json: bool) -> None:
    """List groups, the newest first."""
    with scheduler(work=False) as client:
        groups = list(islice(client.groups(GroupFilter(mine=mine)), limit))
    if printed_json(groups, as_json):
        return
    columns = ("group", "submitter", "jobs", "outcomes", "created")
    print_table(*columns, rows=map(_row, groups))


def _row(group: GroupView) -> tuple[str, ...]:
    created = group.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    counts = str(group.jobs), counted(group.outcomes)
    return escape(group.name), escape(group.submitter), *counts, created


@group.command()
@_name_argument
@_submitter_option
@json_option(GroupView)
def show(name: str, submitter: str | None, as_json: bool) -> None:
    """Show counts of a group's jobs by outcome, and its first patches."""
    with scheduler(work=False) as client:
        view = client.group(name, submitter)
        first = [] if as_json else list(islice(client.group_patches(name, submitter), _FIRST))
    if printed_json(view, as_json):
        return
    results.print(f"group {view.name} of {view.submitter}: {view.jobs} jobs")
    results.print(f"  {counted(view.outcomes)}")
    print_table(*HEADS, rows=map(_patch_row, first))
    if len(first) == _FIRST:
        people.print(f"all patches: kgym group patches {view.name}")


@group.command()
@_name_argument
@_submitter_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, safe for spreadsheets.")
@json_option(PatchRow)
def patches(name: str, submitter: str | None, as_csv: bool, as_json: bool) -> None:
    """Show the patches of a group, oldest job first. With --json, each patch is a line."""
    if as_csv and as_json:
        raise click.UsageError("give either --csv or --json")
    with scheduler(work=False) as client:
        listed = client.group_patches(name, submitter)
        if as_csv:
            _print_csv(listed)
        elif as_json:
            for patch in listed:
                print_json(patch)
        else:
            print_table(*HEADS, rows=map(_patch_row, listed))


def _print_csv(patches: Iterable[PatchRow]) -> None:
    rows = iter(patches)
    # Fetched first, so that an error is reported before the header is printed.
    first = next(rows, None)
    click.echo(csv_text.header(), nl=False)
    if first is not None:
        click.echo(csv_text.lines([first]), nl=False)
    for row in rows:
        click.echo(csv_text.lines([row]), nl=False)


def _patch_row(patch: PatchRow) -> tuple[str, ...]:
    names = patch.bug, patch.patch
    return cells(patch.job, patch.outcome, names, patch.seconds, patch.reason)


@group.command()
@_name_argument
@_submitter_option
@json_option(Aborted)
def abort(name: str, submitter: str | None, as_json: bool) -> None:
    """Abort a group's unfinished jobs; running steps are killed."""
    with scheduler(work=False) as client:
        done = client.abort_group(name, submitter)
        # The scheduler aborts a bounded number of jobs per call.
        while done.more:
            again = client.abort_group(name, submitter)
            both = [*done.aborted, *again.aborted]
            done = again.model_copy(update={"aborted": both})
    if not printed_json(done, as_json):
        results.print(f"aborted: {' '.join(map(str, done.aborted)) or 'none'}")
