"""A recorded queue: arrival and duration of steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from kgym.api.jobs import JobView
from kgym.api.steps import StepKind


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded step."""

    at: float
    """Seconds since the recording began."""
    kind: StepKind
    seconds: float
    """Its duration."""


def recorded(jobs: Iterable[JobView], since: datetime) -> list[RecordedStep]:
    """Return the finished steps that were queued since then, in order of arrival."""
    steps = [
        RecordedStep(
            (step.queued_at - since).total_seconds(),
            step.kind,
            max(0.0, (step.finished_at - step.started_at).total_seconds()),
        )
        for job in jobs
        for step in job.steps
        if step.queued_at and step.started_at and step.finished_at and step.queued_at >= since
    ]
    return sorted(steps, key=lambda step: step.at)
