"""`kgym group`."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from kgym.api import result_csv
from kgym.api.bulk import Aborted
from kgym.api.groups import GroupFilter, GroupResult, GroupView
from kgym.api.jobs import GroupName, Submitter
from kgym_cli.jobs.outcome_table import HEADS, cells, counted, tagged
from kgym_cli.output import json_option, people, print_json, print_table, results
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


# Jobs that `kgym group show` lists.
_FIRST = 50
_name_argument = click.argument("name", callback=_valid(GroupName))
_submitter_option = click.option(
    "--submitter", callback=_valid(Submitter), help="Owner of the group.  [default: you]"
)


@click.group()
def group() -> None:
    """List groups of jobs, show and export their results, abort them.

    A sweep makes a group; so does every job with a `group`. A group is as old as its first job.
    """


@group.command("list")
@click.option("--mine", is_flag=True, help="Only your own groups.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@json_option(list[GroupView])
def list_(mine: bool, limit: int, as_json: bool) -> None:
    """List groups, the newest first."""
    with scheduler(work=False) as client:
        groups = list(islice(client.groups(GroupFilter(mine=mine)), limit))
    if as_json:
        print_json(groups)
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
    """Show counts of a group's jobs by outcome, and its first jobs."""
    with scheduler(work=False) as client:
        view = client.group(name, submitter)
        first = [] if as_json else list(islice(client.group_results(name, submitter), _FIRST))
    if as_json:
        print_json(view)
        return
    results.print(f"group {view.name} of {view.submitter}: {view.jobs} jobs", markup=False)
    results.print(f"  {counted(view.outcomes)}", markup=False)
    print_table(*HEADS, rows=map(_result_row, first))
    if view.jobs > len(first):
        people.print(f"all jobs: kgym group results {view.name}", markup=False)


@group.command("results")
@_name_argument
@_submitter_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, safe for spreadsheets.")
@json_option(GroupResult)
def results_of_group(name: str, submitter: str | None, as_csv: bool, as_json: bool) -> None:
    """Show the results of a group's jobs, oldest first. With --json, each job is a line."""
    if as_csv and as_json:
        raise click.UsageError("give either --csv or --json")
    with scheduler(work=False) as client:
        results_of_group = client.group_results(name, submitter)
        if as_csv:
            _print_csv(results_of_group)
        elif as_json:
            for result in results_of_group:
                print_json(result)
        else:
            print_table(*HEADS, rows=map(_result_row, results_of_group))


def _print_csv(results_of_group: Iterable[GroupResult]) -> None:
    rows = iter(results_of_group)
    # Fetched first, so that an error is reported before the header is printed.
    first = next(rows, None)
    click.echo(result_csv.header(), nl=False)
    if first is not None:
        click.echo(result_csv.lines([first]), nl=False)
    for row in rows:
        click.echo(result_csv.lines([row]), nl=False)


def _result_row(result: GroupResult) -> tuple[str, ...]:
    names = tagged(result.tags)
    return cells(result.job, result.outcome, names, result.seconds, result.reason)


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
    if as_json:
        print_json(done)
    else:
        results.print(f"aborted: {' '.join(map(str, done.aborted)) or 'none'}")
