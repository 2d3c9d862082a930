"""Progress of a job in the terminal: a line per step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kgym.api.jobs import UNATTENDED, JobEvent, JobFilter, JobView
from kgym.api.states import State
from kgym.errors import InfrastructureError
from kgym_cli.jobs import waiting
from kgym_cli.output import Exit, people
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.client import Client

_UNITS = {"bytes": (1 << 20, "MiB")}
_STYLES = {"succeeded": "green", "failed": "red", "aborted": "yellow", "running": "cyan"}


def no_result(job: JobView) -> Exit:
    """Print why a job's first step has no result; return the exit status."""
    failure = job.steps[0].failure
    people.print(failure.message if failure else f"job {job.id} is {job.state}")
    return Exit.USER if failure and failure.cause == "user" else Exit.INFRASTRUCTURE


def follow(client: "Client", job: JobView, last: int = 0, *, label: str = "") -> JobView:
    """Show the job's events after number `last` until it ends; return the finished job.

    A terminal gets bars, anything else the job's log as lines. `label` precedes each, to tell
    several jobs apart. Raises InfrastructureError if the scheduler is away for five minutes, or if
    this machine's own platform has ended.
    """
    from kgym.bugs.ended_job import PATIENCE_SECONDS, PAUSE_SECONDS, TRYING_AGAIN  # noqa: PLC0415 - its import takes 0.2 s

    if not label and (left := _left_behind(client, job)):
        people.print(
            f"not started, as no command waits for them: jobs {', '.join(map(str, left))}"
            " (`kgym job wait` or `abort` one; `kgym up` runs all)"
        )
    # Bars would fill a log file with control sequences.
    show = _Bars(job, label) if people.is_terminal else _Lines(people, label)
    with show.shown(), waiting.Watch(client, job.id, show.waits) as watch:
        watch.saw(job)
        away_from: float | None = None
        while True:
            try:
                for event in client.events(job.id, last):
                    last, away_from = event.id, None
                    show.event(event)
                    if event.kind == "state":
                        watch.saw(state=str(event.data["state"]))
                return client.job(job.id)
            except InfrastructureError as error:
                # Nothing restarts this machine's own platform: waiting for it is useless.
                if settings().server is None:
                    raise
                if away_from is None:
                    away_from = time.monotonic()
                    people.print(f"{error.message}; {TRYING_AGAIN}")
                if time.monotonic() - away_from > PATIENCE_SECONDS:
                    raise
                time.sleep(PAUSE_SECONDS)


def _left_behind(client: "Client", job: JobView) -> list[int]:
    """Return the user's newest other jobs that do not run because nobody follows them."""
    waiting = client.page(JobFilter(state=State.QUEUED, mine=True)).jobs
    return [
        other.id
        for other in waiting
        if other.id != job.id and any(step.waiting == UNATTENDED for step in other.steps)
    ]


class _Lines:
    """A job as lines: changes of state and the steps' logs."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label

    @contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def event(self, event: JobEvent) -> None:
        match event.kind:
            case "state" if event.step is not None:
                self._print(event, str(event.data["state"]))
            case "log":
                for line in event.data["text"].splitlines():
                    self._print(event, line)

    def waits(self, step: int, reason: str) -> None:
        """Show why a queued step does not start."""
        self._console.print(f"{self._label}step {step}: waits: {reason}", markup=False)

    def _print(self, event: JobEvent, line: str) -> None:
        self._console.print(f"{self._label}step {event.step}: {line}", markup=False)


class _Bars:
    """A job as one bar per step."""

    def __init__(self, job: JobView, label: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description:24}"),
            TextColumn("{task.fields[stage]:24}"),
            BarColumn(bar_width=30),
            _Amount(),
            TimeElapsedColumn(),
            _Remaining(),
            console=people,
        )
        self._tasks: list[TaskID] = [
            self._progress.add_task(
                f"{label}{step.number + 1}/{len(job.steps)} {step.kind}",
                total=None,
                start=False,
                stage="",
                unit="",
            )
            for step in job.steps
        ]

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress:
            yield

    def event(self, event: JobEvent) -> None:
        if event.step is None:
            return
        task = self._tasks[event.step]
        match event.kind:
            case "progress":
                data = event.data
                self._progress.update(
                    task,
                    completed=data["done"],
                    total=data["total"],
                    stage=escape(data["stage"]),
                    unit=data["unit"],
                )
            case "state":
                self._state(task, str(event.data["state"]))

    def waits(self, step: int, reason: str) -> None:
        """Show why a queued step does not start."""
        self._progress.update(self._tasks[step], stage=f"[dim]{escape(reason)}[/]")

    def _state(self, task: TaskID, state: str) -> None:
        stage = f"[{_STYLES.get(state, 'dim')}]{state}[/]"
        if state == "running":
            # A step may run again after a lost lease: its bar starts over.
            self._progress.reset(task, start=True, total=None, stage=stage, unit="")
        elif state in ("succeeded", "failed", "aborted", "skipped"):
            self._progress.update(task, completed=1, total=1, stage=stage, unit="")
            self._progress.stop_task(task)
        else:
            self._progress.update(task, stage=stage)


class _Remaining(TimeRemainingColumn):
    """Estimated remaining time."""

    def render(self, task: Task) -> Text:
        """Return the remaining time, empty if unknown."""
        if task.finished or task.time_remaining is None:
            return Text("")
        return Text.assemble(super().render(task), " left", style="dim")


class _Amount(ProgressColumn):
    """Amount done and total, in the stage's unit."""

    def render(self, task: Task) -> Text:
        """Return the amount, empty if unknown."""
        unit = task.fields["unit"]
        if not unit:
            return Text("")
        scale, name = _UNITS.get(unit, (1, unit))
        done = f"{task.completed / scale:,.0f}"
        total = f"/{task.total / scale:,.0f}" if task.total else ""
        return Text(f"{done}{total} {name}", style="dim")
