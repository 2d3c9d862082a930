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
from kgym.api.states import State
from kgym.api.steps import Verdict
from kgym_cli.output import json_option, print_json, print_table, results
from kgym_cli.platforms.scheduler_choice import scheduler


def _valid(kind: Any) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return what checks an argument of this type."""
    adapter: TypeAdapter[str] = TypeAdapter(kind)

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else adapter.validate_python(value)
        except ValidationError as error:
            raise click.BadParameter(error.errors()[0]["msg"]) from error

    return check


_name_argument = click.argument("name", callback=_valid(GroupName))
_submitter_option = click.option(
    "--submitter", callback=_valid(Submitter), help="Whose group; your own without it."
)


@click.group()
def group() -> None:
    """List groups of jobs, show and export what they came to, abort them.

    A sweep makes a group; so does every job with a `group`. It is as old as its first job.
    """


@group.command("list")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@json_option(list[GroupView])
def list_(mine: bool, limit: int, as_json: bool) -> None:
    """List groups, the newest first."""
    with scheduler(work=False) as client:
        found = list(islice(client.groups(GroupFilter(mine=mine)), limit))
    if as_json:
        print_json(found)
        return
    columns = ("group", "submitter", "jobs", "states", "verdicts", "resolved", "created")
    print_table(*columns, rows=map(_row, found))


def _row(one: GroupView) -> tuple[str, ...]:
    created = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    counts = (_counted(one.states), _counted(one.verdicts), str(one.resolved))
    return escape(one.name), escape(one.submitter), str(one.jobs), *counts, created


def _counted(counts: Mapping[State, int] | Mapping[Verdict, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


@group.command()
@_name_argument
@_submitter_option
@json_option(GroupView)
def show(name: str, submitter: str | None, as_json: bool) -> None:
    """Show how many jobs of a group stand where, and what they came to."""
    with scheduler(work=False) as client:
        one = client.group(name, submitter)
    if as_json:
        print_json(one)
        return
    lines = [f"group {one.name} of {one.submitter}: {one.jobs} jobs"]
    lines.append(f"states: {_counted(one.states)}")
    lines.append(f"verdicts: {_counted(one.verdicts) or 'none'}")
    lines.append(f"resolved: {one.resolved}")
    results.print("\n  ".join(lines), markup=False)


@group.command("results")
@_name_argument
@_submitter_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, safe for spreadsheets.")
@json_option(GroupResult)
def results_(name: str, submitter: str | None, as_csv: bool, as_json: bool) -> None:
    """Show what each job of a group came to, oldest first. With --json, each is a line."""
    if as_csv and as_json:
        raise click.UsageError("give either --csv or --json")
    with scheduler(work=False) as client:
        found = client.group_results(name, submitter)
        if as_csv:
            _print_csv(found)
        elif as_json:
            for one in found:
                print_json(one)
        else:
            columns = ("job", "state", "verdict", "resolved", "seconds", "title", "reason", "tags")
            print_table(*columns, rows=map(_result_row, found))


def _print_csv(found: Iterable[GroupResult]) -> None:
    rows = iter(found)
    first = next(rows, None)  # an error is told before anything is printed
    click.echo(result_csv.header(), nl=False)
    if first is not None:
        click.echo(result_csv.lines([first]), nl=False)
    for one in rows:
        click.echo(result_csv.lines([one]), nl=False)


def _result_row(one: GroupResult) -> tuple[str, ...]:
    resolved = "" if one.resolved is None else ("yes" if one.resolved else "no")
    words = (escape(one.title or ""), escape(one.reason or ""), escape(" ".join(one.tags)))
    return str(one.job), one.state, one.verdict or "", resolved, f"{one.seconds:g}", *words


@group.command()
@_name_argument
@_submitter_option
@json_option(Aborted)
def abort(name: str, submitter: str | None, as_json: bool) -> None:
    """End what is unfinished of a group; what its jobs run is killed."""
    with scheduler(work=False) as client:
        done = client.abort_group(name, submitter)
        while done.more:
            again = client.abort_group(name, submitter)
            both = [*done.aborted, *again.aborted]
            done = again.model_copy(update={"aborted": both})
    if as_json:
        print_json(done)
    else:
        results.print(f"aborted: {' '.join(map(str, done.aborted)) or 'none'}")
