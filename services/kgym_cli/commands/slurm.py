"""`kgym slurm`."""

import asyncio
import os
import pwd
import re
from math import ceil
from pathlib import Path

import click
from pydantic import Field
from rich.markup import escape

from kgym.errors import InfrastructureError, UserError
from kgym_cli.lazy import reachable
from kgym_cli.output import json_option, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler

# Slurm's controller may be busy; its own commands give up after minutes.
_SECONDS = 120.0
_OF_SLURM = re.compile(r"(SLURM|SBATCH|SQUEUE|SCANCEL)_[A-Z_]{1,40}")
_MOST = 10_000


class SlurmTask(Answer):
    """A task of an array: one worker."""

    task: str = Field(description="its number for Slurm's own commands")
    state: str = Field(description="in Slurm's words: PENDING, RUNNING, …")
    node: str = Field(description="empty while it waits")
    left: str = Field(description="until its time limit, as Slurm writes it")
    why: str = Field(description="why it waits, in Slurm's words")


class SlurmUp(Answer):
    """What was submitted."""

    array: str | None = Field(description="number of the new array; null if none was needed")
    added: int = Field(description="its tasks")
    workers: int = Field(description="tasks that waited or ran before")
    steps: int = Field(description="steps that wait for a worker or are run by one")


@click.group()
def slurm() -> None:
    """Run workers as tasks of a job array on a Slurm cluster.

    docs/many-machines.md says how to prepare a cluster.
    """


_name_option = click.option(
    "--name", default="kgym-workers", metavar="NAME", help="Name of the arrays in Slurm."
)


@slurm.command()
@click.argument("most", metavar="N", type=click.IntRange(1, _MOST))
@click.argument("batch", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--slots", default=2, type=click.IntRange(1, 1000), help="Parallel steps of a worker."
)
@_name_option
@json_option(SlurmUp)
def up(most: int, batch: Path, slots: int, name: str, as_json: bool) -> None:
    """Submit workers until there are enough for all queued and running steps, or N.

    BATCH is the batch file: deploy/slurm/workers.sh of a checkout, or your copy. Repeat the command
    as more steps are queued. sbatch reads SBATCH_PARTITION, SBATCH_ACCOUNT and other variables.
    """
    with scheduler(work=False) as client:
        steps = sum(queue.queued + queue.running for queue in client.queues())
    known = _tasks(name)
    added = max(0, min(most, ceil(steps / slots)) - len(known))
    array = None
    if added:
        words = ("--parsable", f"--job-name={_checked(name)}", f"--array=0-{added - 1}")
        printed = _slurm("sbatch", *words, str(batch.resolve()), slots=slots)
        array = printed.rpartition("\n")[2].partition(";")[0]  # warnings come before it
    answer = SlurmUp(array=array, added=added, workers=len(known), steps=steps)
    if not printed_json(answer, as_json):
        what = f"array {array}: {added} workers" if added else "no more workers needed"
        results.print(f"{what}; {len(known)} before, {steps} steps")


@slurm.command()
@_name_option
@json_option(list[SlurmTask])
def status(name: str, as_json: bool) -> None:
    """Show your tasks that wait or run."""
    tasks = _tasks(name)
    if printed_json(tasks, as_json):
        return
    rows = (tuple(map(escape, map(str, dict(task).values()))) for task in tasks)
    print_table(*SlurmTask.model_fields, rows=rows)


@slurm.command()
@click.option("--now", is_flag=True, help="Return running steps to the queue instead.")
@_name_option
@json_option(list[SlurmTask])
def down(now: bool, name: str, as_json: bool) -> None:
    """Cancel your waiting tasks, and let those that run finish their steps."""
    own = (f"--user={pwd.getpwuid(os.getuid()).pw_name}", f"--name={_checked(name)}")
    _slurm("scancel", "--state=PENDING", *own)
    if now:
        _slurm("scancel", *own)
    elif any(task.state == "RUNNING" for task in _tasks(name)):
        _slurm("scancel", "--batch", "--signal=TERM", "--state=RUNNING", *own)
    tasks = _tasks(name)
    if not printed_json(tasks, as_json):
        results.print(f"{len(tasks)} tasks have not ended yet" if tasks else "no task is left")


reachable(up)


def _checked(name: str) -> str:
    # scancel takes a list of names, and squeue cuts long ones.
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,60}", name, re.ASCII):
        message = f"--name {name}: use up to 61 letters, digits, `_`, `.` and `-`"
        raise UserError("bad_option", message)
    return name


def _tasks(name: str) -> list[SlurmTask]:
    user = pwd.getpwuid(os.getuid()).pw_name
    words = ("--noheader", "--array", f"--user={user}", f"--name={_checked(name)}")
    listed = _slurm("squeue", *words, "--format=%i|%T|%N|%L|%r").splitlines()
    return [_task(line) for line in listed if "|" in line]


def _task(line: str) -> SlurmTask:
    fields = line.strip().split("|")
    if len(fields) != len(SlurmTask.model_fields):
        raise InfrastructureError("program_failed", f"squeue prints {line[:200]!r}")
    return SlurmTask.model_validate(dict(zip(SlurmTask.model_fields, fields, strict=True)))


def _slurm(program: str, *words: str, slots: int | None = None) -> str:
    """Run one of Slurm's commands; return its output. Raises ProgramFailed."""
    # Imported late: other commands' help needs none of it.
    from kgym.host import proc  # noqa: PLC0415

    # sbatch hands its environment to the job and keeps it on disk: no token is in it.
    env = proc.environment()
    env |= {key: value for key, value in os.environ.items() if _OF_SLURM.fullmatch(key)}
    if slots is not None:
        env["KGYM_SLOTS"] = str(slots)
    return asyncio.run(proc.run([program, *words], timeout=_SECONDS, env=env)).text.strip()
