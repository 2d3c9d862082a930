"""Notices of what needs the operator's attention. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kgym.api.jobs import QueueView, RunningStep, WorkerView
from kgym.api.statistics import AttemptCount
from kgym.api.steps import StepKind
from kgym.api.storage import StorageView
from kgym_monitor.pages.wording import KINDS, duration, size

# A step is late, or perhaps stuck, once it takes so many times as long as usual.
_LATE, _STUCK = 2.0, 5.0
# Seconds by which short steps vary anyway.
_SLACK_SECONDS = 60.0
# Share of the storage's budget from which on there is a notice.
_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a running step takes, against steps of its kind."""

    seconds: float
    usual: float | None
    """Median of recent ones; None if none has ended."""

    @property
    def look(self) -> str:
        """The state whose colour it has: failed if it may be stuck, queued if it is late."""
        if self.usual is None or self.seconds < self.usual + _SLACK_SECONDS:
            return "running"
        if self.seconds > _STUCK * self.usual:
            return "failed"
        return "queued" if self.seconds > _LATE * self.usual else "running"

    @property
    def words(self) -> str:
        """What is unusual; empty if nothing is."""
        if self.look == "running":
            return ""
        return f"usually {duration(self.usual)}"


def paces(
    workers: Iterable[WorkerView], usual: Mapping[StepKind, float], now: datetime
) -> dict[tuple[int, int], Pace]:
    """Return the pace of each running step, by job and number."""
    return {
        (step.job, step.step): Pace((now - step.started_at).total_seconds(), usual.get(step.kind))
        for worker in workers
        for step in worker.running
    }


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that needs attention, and where to look."""

    words: str
    href: str


def notices(
    queues: Sequence[QueueView],
    workers: Sequence[WorkerView],
    storage: StorageView | None,
    last_hour: Sequence[AttemptCount],
    pace_of: Mapping[tuple[int, int], Pace],
) -> Iterator[Notice]:
    """Yield what needs attention: what is stuck, overdue, failed by the platform, full."""
    yield from _of_queues(queues, workers)
    for step in _running(workers):
        pace = pace_of[step.job, step.step]
        if pace.look == "failed":
            words = f"Job {step.job}: {KINDS[step.kind]} has run for {duration(pace.seconds)}"
            yield Notice(f"{words}, {pace.words}", f"/jobs/{step.job}?step={step.step}")
    failures = [count for count in last_hour if count.cause == "infrastructure"]
    if number := sum(count.attempts for count in failures):
        reasons = ", ".join(sorted({count.reason or "unknown" for count in failures})[:5])
        words = f"The platform failed {number:,} step{'' if number == 1 else 's'} within the hour"
        yield Notice(f"{words}: {reasons}", "/jobs?outcome=inconclusive")
    if storage is not None:
        yield from _of_storage(storage)


def _of_queues(queues: Sequence[QueueView], workers: Sequence[WorkerView]) -> Iterator[Notice]:
    for queue in queues:
        for need in queue.unmet:
            yield Notice(f"{KINDS[queue.kind]} steps wait: {need}", f"/jobs?kind={queue.kind}")
    waiting = sum(queue.queued for queue in queues)
    if waiting and not any(worker.state == "live" for worker in workers):
        yield Notice(f"{waiting:,} steps wait, and no worker is live", "/workers")
    if lost := sum(worker.state == "lost" for worker in workers):
        yield Notice(f"{lost} worker{'' if lost == 1 else 's'} lost within a day", "/workers")


def _of_storage(storage: StorageView) -> Iterator[Notice]:
    if storage.warning:
        yield Notice(storage.warning, "/suitecache")
    elif storage.budget and storage.bytes > _NEARLY_FULL * storage.budget:
        used = f"{size(storage.bytes)} of {size(storage.budget)}"
        yield Notice(f"The storage is nearly full: {used}", "/suitecache")


def _running(workers: Iterable[WorkerView]) -> list[RunningStep]:
    steps = [step for worker in workers for step in worker.running]
    return sorted(steps, key=lambda step: step.started_at)
