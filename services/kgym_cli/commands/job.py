"""`kgym job`."""

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from kgym import marks
from kgym.bulk import AbortFilter
from kgym.client import Client
from kgym.errors import UserError
from kgym.jobs import JobFilter, JobRequest, JobView
from kgym.states import State
from kgym.steps import StepKind
from kgym_cli.connect import scheduler
from kgym_cli.follow import follow
from kgym_cli.output import Exit, echo, json_option, leave, people, print_json, tables

_STYLES = {"succeeded": "green", "failed": "red", "aborted": "yellow", "running": "cyan"}


@click.group()
def job() -> None:
    """Submit, list, show, wait for, abort and restart jobs."""


@job.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--key", help="Idempotency key: submitting the same again returns the first jobs.")
@click.option("--wait", is_flag=True, help="Wait until the job has finished; for one file.")
@json_option
def submit(files: tuple[Path, ...], key: str | None, wait: bool, as_json: bool) -> None:
    """Submit the job in each of FILES, JSON as POST /v1/jobs takes it (- for standard input).

    Of several, up to 1,000, all are submitted or none.
    """
    requests = [_read(file) for file in files]
    if len(requests) > 1 and wait:
        raise UserError("bad_option", "--wait follows one job: give one file, or wait for each")
    with scheduler(work=wait) as client:
        if len(requests) == 1:
            _result(client, client.submit(requests[0], key), as_json=as_json, wait=wait)
            return
        done = client.submit_all(requests, key)
    if as_json:
        print_json(done.model_dump(mode="json"))
    else:
        people.print(f"jobs {' '.join(map(str, done.jobs))}: {done.created} of them new")


def _read(file: Path) -> JobRequest:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        return JobRequest.model_validate_json(text)
    except OSError as error:
        raise UserError("cannot_read", f"{file}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError("bad_job", f"{file}: {wrong}") from error


@job.command("list")
@click.option("--state", type=click.Choice([one for one in State if one != State.SKIPPED]))
@click.option("--kind", type=click.Choice(list(StepKind)))
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@json_option
def list_(
    state: State | None, kind: StepKind | None, tag: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, the newest first."""
    with scheduler(work=False) as client:
        wanted = JobFilter(state=state, kind=kind, tag=tag)
        found = list(islice(client.jobs(wanted), limit))
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    table = Table("job", "state", "steps", "created", "tags", box=None)
    for column in table.columns[:4]:
        column.no_wrap = True
    for one in found:
        steps = " ".join(f"[{_STYLES.get(step.state, 'dim')}]{step.kind}[/]" for step in one.steps)
        created = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(str(one.id), _styled(one.state), steps, created, _tags(one))
    tables.print(table)


@job.command()
@click.argument("job_id", type=int)
@json_option
def show(job_id: int, as_json: bool) -> None:
    """Show a job, its steps and what they left."""
    with scheduler(work=False) as client:
        _print(client.job(job_id), as_json=as_json)


@job.command()
@click.argument("job_id", type=int)
@click.option("--step", type=click.IntRange(0), help="Only this step's.")
def log(job_id: int, step: int | None) -> None:
    """Print a job's log."""
    with scheduler(work=False) as client:
        echo(client.log(job_id, step=step), end="")


@job.command()
@click.argument("job_ids", type=click.IntRange(1), nargs=-1)
@click.option("--tag", help="Abort the unfinished jobs with this tag, instead of JOB_IDS.")
@click.option("--kind", type=click.Choice(list(StepKind)), help="Those with a step of this kind.")
@click.option("--everybody", is_flag=True, help="With --tag or --kind: others' jobs, too.")
@json_option
def abort(
    job_ids: tuple[int, ...],
    tag: str | None,
    kind: StepKind | None,
    everybody: bool,
    as_json: bool,
) -> None:
    """End jobs now, given by number or by --tag and --kind; what they run is killed."""
    filtered = tag is not None or kind is not None
    if filtered == bool(job_ids):
        raise UserError("bad_option", "give either the numbers of jobs, or --tag or --kind")
    with scheduler(work=False) as client:
        if len(job_ids) == 1:
            _print(client.abort(job_ids[0]), as_json=as_json)
            return
        wanted = AbortFilter(tag=tag, kind=kind, mine=not everybody) if filtered else job_ids
        done = client.abort_all(wanted)
    if as_json:
        print_json(done.model_dump(mode="json"))
        return
    for what, ids in (("aborted", done.aborted), ("had finished", done.finished)):
        people.print(f"{what}: {' '.join(map(str, ids)) or 'none'}")
    if done.missing:
        people.print(f"no such jobs: {' '.join(map(str, done.missing))}")
    if done.more:
        people.print("there are more: the same again aborts them")


@job.command()
@click.argument("job_id", type=int)
@click.option("--from-step", type=click.IntRange(0), help="Default: the first that failed.")
@click.option("--wait", is_flag=True, help="Wait until the job has finished.")
@json_option
def restart(job_id: int, from_step: int | None, wait: bool, as_json: bool) -> None:
    """Run a finished job again, from a step on."""
    with scheduler(work=wait) as client:
        again = client.restart(job_id, from_step)
        _result(client, again, again.last_event or 0, as_json=as_json, wait=wait)


@job.command()
@click.argument("job_id", type=int)
@json_option
def wait(job_id: int, as_json: bool) -> None:
    """Wait for a job; resume it if nothing runs it."""
    with scheduler(work=True) as client:
        _result(client, client.job(job_id), as_json=as_json, wait=True)


def _result(client: Client, one: JobView, last: int = 0, *, as_json: bool, wait: bool) -> None:
    if wait:
        one = follow(client, one, last)
    _print(one, as_json=as_json)
    if wait:
        leave(_status(one))


def _status(one: JobView) -> Exit:
    if one.state is State.SUCCEEDED:
        return Exit.OK
    causes = {step.failure.cause for step in one.steps if step.failure}
    return Exit.USER if causes == {"user"} else Exit.INFRASTRUCTURE


def _print(one: JobView, *, as_json: bool) -> None:
    if as_json:
        print_json(one.model_dump(mode="json"))
        return
    people.print(f"job {one.id}: {_styled(one.state)}  {_tags(one)}")
    for step in one.steps:
        people.print(f"  step {step.number} {step.kind}: {_styled(step.state)}", end="")
        people.print(f" (attempt {step.attempt})" if step.attempt > 1 else "")
        if step.failure is not None:
            people.print(f"    {step.failure.reason}: {step.failure.message}", markup=False)
        if step.result is not None:
            for name, value in _highlights(step.result.model_dump(mode="json")):
                people.print(f"    {name}: {value}", markup=False)
        if step.artifacts:
            names = ", ".join(artifact.name for artifact in step.artifacts)
            people.print(f"    artifacts: {names}", markup=False)


def _highlights(result: dict[str, Any]) -> list[tuple[str, Any]]:
    names = ("verdict", "reason", "kernel_release", "objects_compiled", "tree_cached", "seconds")
    return [(name, result[name]) for name in names if name in result]


def _tags(one: JobView) -> str:
    """Return the tags that people read, as markup."""
    return escape(" ".join(tag for tag in one.tags if not tag.startswith(marks.REQUEST)))


def _styled(state: State) -> str:
    return f"[{_STYLES.get(state, 'dim')}]{state}[/]"
