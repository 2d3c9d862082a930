"""`kgym job`."""

import contextlib
import heapq
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic import ValidationError
from rich.markup import escape

from kgym.api import trusted_tags
from kgym.api.bulk import Aborted, AbortFilter, Submitted
from kgym.api.jobs import JobFilter, JobRequest, JobView, StepView
from kgym.api.key_value_tags import as_written, bug_and_patch
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import Severity, StepKind
from kgym.bugs import checklist
from kgym.bugs.conclusion import conclusion, seconds
from kgym.bugs.resolution import placed
from kgym.client import Client
from kgym.client.reproduce_bundle import NAME as BUNDLE
from kgym.errors import KgymError, UserError
from kgym_cli.inputs import compressed_files
from kgym_cli.inputs.parameters import PATH, PATH_OR_STDIN, Moment
from kgym_cli.jobs import artifact_download, waiting
from kgym_cli.jobs.artifact_download import Fetched
from kgym_cli.jobs.job_answer import JobAnswer, JobSummary, exit_status
from kgym_cli.jobs.job_progress import follow
from kgym_cli.jobs.outcome_table import HEADS, cells, colour
from kgym_cli.output import (
    Exit,
    echo,
    json_option,
    leave,
    print_json,
    print_table,
    printed_json,
    results,
)
from kgym_cli.platforms.scheduler_choice import scheduler

kind_choice = click.Choice([str(kind) for kind in StepKind])
# Jobs that are followed at the same time. A scheduler allows a caller 200 streams.
_FOLLOWED = 100
# Findings that are shown of a step.
_FINDINGS = 20
_STYLES = {"succeeded": "green", "failed": "red", "aborted": "yellow", "running": "cyan"}


@click.group()
def job() -> None:
    """Submit, list, show, wait for, abort and restart jobs."""


@job.command()
@click.argument("files", nargs=-1, required=True, type=PATH_OR_STDIN)
@click.option("--key", help="Idempotency key: repeating a submission returns the first jobs.")
@click.option("--wait", is_flag=True, help="Wait for the job; only with one file.")
@json_option(JobAnswer | Submitted)
def submit(files: tuple[Path, ...], key: str | None, wait: bool, as_json: bool) -> None:
    """Submit the job in each of FILES: JSON bodies of POST /v1/jobs (- for standard input).

    Of several files, up to 1,000, all jobs are submitted or none.
    """
    requests = [_read(file) for file in files]
    if len(requests) > 1 and wait:
        raise UserError("bad_option", "--wait needs exactly one file")
    with scheduler(work=wait) as client:
        if len(requests) == 1:
            submitted = client.submit(requests[0], key)
            if wait:
                _wait(client, [(submitted, 0)], as_json=as_json)
            _print(client, submitted, as_json=as_json)
            return
        done = client.submit_all(requests, key)
    if not printed_json(done, as_json):
        results.print(f"jobs {' '.join(map(str, done.jobs))}: {done.created} of them new")


def _read(file: Path) -> JobRequest:
    try:
        return JobRequest.model_validate_json(compressed_files.read(file))
    except ValidationError as error:
        # All faults at once, each with its path: pydantic's own text repeats the whole input.
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError("bad_job", f"{file}: {wrong}") from error


@job.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in State if state is not State.SKIPPED]),
    multiple=True,
    help="Only jobs in this state; may be repeated.",
)
@click.option(
    "--outcome",
    type=click.Choice([str(outcome) for outcome in Outcome]),
    help="Only jobs with this outcome.",
)
@click.option("--kind", type=kind_choice, help="Only jobs with a step of this kind.")
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--group", help="Only jobs of this group.")
@click.option(
    "--since", type=Moment(), help="Only jobs created at or after this time: 2026-01-31 12:00."
)
@click.option("--until", type=Moment(), help="Only jobs created before this time.")
@click.option("--limit", type=click.IntRange(1), default=20)
@json_option(list[JobSummary])
def list_(
    states: tuple[str, ...],
    outcome: str | None,
    kind: str | None,
    tag: str | None,
    group: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs, the newest first."""
    times = {"created_after": since, "created_before": until}
    wanted = _filter(outcome=outcome, kind=kind, tag=tag, group=group, **times)
    with scheduler(work=False) as client:
        matching_jobs = list(islice(_jobs(client, wanted, states), limit))
    if printed_json([JobSummary.of(job) for job in matching_jobs], as_json):
        return
    print_table(*HEADS, "steps", "kernel", "created", "tags", rows=map(_row, matching_jobs))


def _row(job: JobView) -> tuple[str, ...]:
    """Return the row of a listed job."""
    took = sum(map(seconds, job.steps))
    return (
        *cells(job.id, job.outcome, bug_and_patch(job.tags), took, job.reason),
        " ".join(f"[{_STYLES.get(step.state, 'dim')}]{step.kind}[/]" for step in job.steps),
        escape(job.kernel or ""),
        job.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        _tags(job),
    )


def _filter(**conditions: object) -> JobFilter:
    try:
        return JobFilter.model_validate(conditions)
    except ValidationError as error:
        wrong = "; ".join(f"--{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise UserError("bad_option", wrong) from error


def _jobs(client: Client, wanted: JobFilter, states: Sequence[str]) -> Iterator[JobView]:
    """Yield jobs in any of these states, newest first; all jobs if none is given."""
    if not states:
        yield from client.jobs(wanted)
        return
    each = (
        client.jobs(wanted.model_copy(update={"state": State(state)}))
        for state in dict.fromkeys(states)
    )
    seen = set()  # a job that changes its state meanwhile may be in two lists
    for job in heapq.merge(*each, key=lambda job: (job.created_at, job.id), reverse=True):
        if job.id not in seen:
            seen.add(job.id)
            yield job


@job.command()
@click.argument("job_id", type=int)
@json_option(JobAnswer)
def show(job_id: int, as_json: bool) -> None:
    """Show a job, its steps and their artifacts."""
    with scheduler(work=False) as client:
        _print(client, client.job(job_id), as_json=as_json)


@job.command()
@click.argument("job_id", type=int)
@click.option("--step", type=click.IntRange(0), help="Only this step.")
def log(job_id: int, step: int | None) -> None:
    """Print a job's log."""
    with scheduler(work=False) as client:
        echo(client.log(job_id, step=step), end="")


@job.command()
@click.argument("job_ids", type=click.IntRange(1), nargs=-1)
@click.option("--tag", help="Abort the unfinished jobs with this tag, instead of JOB_IDS.")
@click.option("--kind", type=kind_choice, help="Abort jobs with a step of this kind.")
@click.option(
    "--everybody", is_flag=True, help="With --tag or --kind: also other submitters' jobs."
)
@json_option(JobAnswer | Aborted)
def abort(
    job_ids: tuple[int, ...], tag: str | None, kind: str | None, everybody: bool, as_json: bool
) -> None:
    """Abort jobs, given by id or by --tag and --kind; running steps are killed."""
    filtered = tag is not None or kind is not None
    if filtered == bool(job_ids):
        raise UserError("bad_option", "give either job ids, or --tag or --kind")
    with scheduler(work=False) as client:
        if len(job_ids) == 1:
            _print(client, client.abort(job_ids[0]), as_json=as_json)
            return
        wanted = (
            AbortFilter(tag=tag, kind=kind and StepKind(kind), mine=not everybody)
            if filtered
            else job_ids
        )
        done = client.abort_all(wanted)
    if printed_json(done, as_json):
        return
    for what, ids in (("aborted", done.aborted), ("had finished", done.finished)):
        results.print(f"{what}: {' '.join(map(str, ids)) or 'none'}")
    if done.missing:
        results.print(f"no such jobs: {' '.join(map(str, done.missing))}")
    if done.more:
        results.print("there are more: repeat the command")


@job.command()
@click.argument("job_ids", type=click.IntRange(1), nargs=-1, required=True)
@click.option(
    "--from-step",
    type=click.IntRange(0),
    help="First step to repeat.  [default: the first that failed]",
)
@click.option("--wait", is_flag=True, help="Wait for the jobs.")
@json_option(JobAnswer)
def restart(job_ids: tuple[int, ...], from_step: int | None, wait: bool, as_json: bool) -> None:
    """Run finished jobs again from a step on. With --json, each job is a line."""
    with scheduler(work=wait) as client:
        again = []
        for number in dict.fromkeys(job_ids):
            again.append(client.restart(number, from_step))
            if not wait:
                _print(client, again[-1], as_json=as_json)
        if wait:
            _wait(
                client,
                [(restarted, restarted.last_event or 0) for restarted in again],
                as_json=as_json,
            )


@job.command()
@click.argument("job_ids", type=click.IntRange(1), nargs=-1, required=True)
@json_option(JobAnswer)
def wait(job_ids: tuple[int, ...], as_json: bool) -> None:
    """Wait for jobs; resume interrupted ones. With --json, each job is a line.

    The exit status is that of the worst result.
    """
    with scheduler(work=True) as client:
        known = [client.job(number) for number in dict.fromkeys(job_ids)]
        _wait(client, [(job, 0) for job in known], as_json=as_json)


def _wait(client: Client, jobs: Sequence[tuple[JobView, int]], *, as_json: bool) -> NoReturn:
    """Follow each job from an event on, print its result, and exit with the worst status."""
    worst = Exit.OK
    # The shared platform only runs jobs that a command follows, so all are followed from the start.
    for job, _ in jobs[1:_FOLLOWED]:
        threading.Thread(target=_stay, args=(client, job.id), daemon=True).start()
    for job, last in jobs:
        label = f"job {job.id} " if len(jobs) > 1 else ""
        done = follow(client, job, last, label=label)
        _print(client, done, as_json=as_json)
        # Statuses are ordered by severity: negative, bad input, platform failure.
        worst = max(worst, exit_status(conclusion(done).answer))
    leave(worst)


def _stay(client: Client, job_id: int) -> None:
    """Follow a job silently until it or the command ends."""
    with contextlib.suppress(KgymError, RuntimeError):
        client.wait(job_id)


@job.command()
@click.argument("job_id", type=click.IntRange(1))
@click.argument("names", metavar="[NAME]…", nargs=-1)
@click.option("--step", type=click.IntRange(0), help="Only this step.")
@click.option("--output", "-o", type=PATH, help="Target folder.  [default: job-JOB_ID]")
@json_option(list[Fetched])
def fetch(
    job_id: int, names: tuple[str, ...], step: int | None, output: Path | None, as_json: bool
) -> None:
    """Download all of a job's artifacts, or those with these names.

    Names may contain * and ?. Each file is verified and saved as FOLDER/STEP-KIND/NAME. Existing
    files are not downloaded again; interrupted downloads resume.

    `bundle.tar.gz` is packed from a reproduce step and its build: kernel, vmlinux, root file
    system, reproducer, and reproduce.sh, which crashes the kernel again with QEMU.
    """
    folder = output or Path(f"job-{job_id}")
    with scheduler(work=False) as client:
        source_job = client.job(job_id)
        unpacked = artifact_download.packable(source_job, names, step)
        rest = [name for name in names if not unpacked or name != BUNDLE]
        wanted = artifact_download.chosen(source_job, rest, step) if rest or not names else []
        got = [
            artifact_download.fetch(client, job_id, artifact, folder, quiet=as_json)
            for artifact in wanted
        ]
        got += [
            artifact_download.pack(client, source_job, reproduced, folder, quiet=as_json)
            for reproduced in unpacked
        ]
    if not printed_json(got, as_json):
        for artifact in got:
            echo(artifact.path)


def _print(client: Client, job: JobView, *, as_json: bool) -> None:
    if as_json:
        print_json(JobAnswer.with_crashes(client, job))
        return
    sentence = f"[{colour(job.outcome)}]{escape(job.sentence)}[/]"
    results.print(f"job {job.id}: {sentence}", markup=True)
    evidence = checklist.line(conclusion(job).evidence)
    # For a resolved bug, the reason already has the evidence.
    if evidence and evidence not in (job.reason or ""):
        results.print(f"  evidence: {evidence}")
    if tags := _tags(job):
        results.print(f"  tags: {tags}", markup=True)
    for step in job.steps:
        _print_step(step)


def _print_step(step: StepView) -> None:
    results.print(f"  step {step.number} {step.kind}: {_styled(step.state)}", end="", markup=True)
    results.print(f" (attempt {step.attempt})" if step.attempt > 1 else "")
    lines = [f"waits: {reason}"] if (reason := waiting.words(step)) else []
    if step.failure is not None:
        lines.append(f"{step.failure.reason}: {step.failure.message}")
    if step.result is not None:
        values = _highlights(step.result.model_dump(mode="json"))
        lines += [f"{name}: {value}" for name, value in values]
    # The reasons are printed, too, as findings are accepted by reason.
    blocking = [
        f"BLOCKING: {finding.reason}: {placed(finding)}"
        for finding in getattr(step.result, "findings", [])
        if finding.severity is Severity.BLOCKING
    ]
    lines += blocking[:_FINDINGS]
    if step.artifacts:
        lines.append(f"artifacts: {', '.join(artifact.name for artifact in step.artifacts)}")
    for line in lines:
        results.print(f"    {line}")


def _highlights(result: dict[str, Any]) -> list[tuple[str, Any]]:
    names = ("verdict", "reason", "kernel_release", "objects_compiled", "tree_cached", "seconds")
    return [(name, result[name]) for name in names if name in result]


def _tags(job: JobView) -> str:
    """Return the tags for people, as markup."""
    return escape(
        " ".join(as_written(tag) for tag in job.tags if not tag.startswith(trusted_tags.REQUEST))
    )


def _styled(state: State) -> str:
    return f"[{_STYLES.get(state, 'dim')}]{state}[/]"
