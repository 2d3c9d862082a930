"""`kgym group`."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from kgym.api import result_csv
from kgym.api.bulk import Aborted
from kgym.api.groups import GroupFilter, GroupResult, GroupView
from kgym.api.jobs import GroupName, Submitter
from kgym.api.key_value_tags import as_written
from kgym.api.states import State
from kgym.api.steps import Verdict
from kgym_cli.output import json_option, print_json, print_table, results
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
    columns = ("group", "submitter", "jobs", "states", "verdicts", "resolved", "created")
    print_table(*columns, rows=map(_row, groups))


def _row(group: GroupView) -> tuple[str, ...]:
    created = group.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    counts = (_counted(group.states), _counted(group.verdicts), str(group.resolved))
    return escape(group.name), escape(group.submitter), str(group.jobs), *counts, created


def _counted(counts: Mapping[State, int] | Mapping[Verdict, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


@group.command()
@_name_argument
@_submitter_option
@json_option(GroupView)
def show(name: str, submitter: str | None, as_json: bool) -> None:
    """Show counts of a group's jobs by state and result."""
    with scheduler(work=False) as client:
        view = client.group(name, submitter)
    if as_json:
        print_json(view)
        return
    lines = [f"group {view.name} of {view.submitter}: {view.jobs} jobs"]
    lines.append(f"states: {_counted(view.states)}")
    lines.append(f"verdicts: {_counted(view.verdicts) or 'none'}")
    lines.append(f"resolved: {view.resolved}")
    results.print("\n  ".join(lines), markup=False)


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
            columns = ("job", "state", "verdict", "resolved", "seconds", "title", "reason", "tags")
            print_table(*columns, rows=map(_result_row, results_of_group))


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
    resolved = "" if result.resolved is None else ("yes" if result.resolved else "no")
    tags = " ".join(map(as_written, result.tags))
    words = (escape(result.title or ""), escape(result.reason or ""), escape(tags))
    return (
        str(result.job),
        result.state,
        result.verdict or "",
        resolved,
        f"{result.seconds:g}",
        *words,
    )


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
