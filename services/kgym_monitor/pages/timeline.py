"""A job's steps on one axis of time: how long each waited in its queue, and how long it ran. Pure.

Moments are seconds since 1970; `None` as an end means that it goes on.
"""

from dataclasses import dataclass
from datetime import datetime

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State

WIDTH = 1000
"""Units of the axis's whole length."""
_LEAST = 3.0
"""What a span takes at least, to be seen."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a step's life, from one moment to another."""

    start: float
    end: float | None

    def seconds(self, now: float) -> float:
        """Return how long it took, or has taken by now."""
        return max(0.0, (now if self.end is None else self.end) - self.start)


@dataclass(frozen=True, slots=True)
class Bar:
    """One step's line."""

    step: StepView
    queue: Span | None
    run: Span | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lines, and the axis that they share."""

    start: float
    end: float | None
    now: float
    bars: tuple[Bar, ...]

    def place(self, span: Span) -> tuple[float, float]:
        """Return where the span begins on the axis, and how wide it is, in units."""
        last = self.now if self.end is None else self.end
        length = max(last - self.start, 0.001)
        end = last if span.end is None else span.end
        x = min(max(0.0, (span.start - self.start) / length * WIDTH), WIDTH - _LEAST)
        width = max(_LEAST, (end - span.start) / length * WIDTH)
        return round(x, 2), round(min(width, WIDTH - x), 2)


def timeline(job: JobView, now: float) -> Timeline:
    """Return the timeline of a job's latest attempts; it begins when the job was submitted."""
    bars = tuple(_bar(step) for step in job.steps)
    ends = [span.end for bar in bars for span in (bar.queue, bar.run) if span and span.end]
    start = job.created_at.timestamp()
    # A job that was restarted keeps the attempts of steps that were not run again.
    starts = [span.start for bar in bars for span in (bar.queue, bar.run) if span]
    end = max([*ends, start]) if job.state.final else None
    return Timeline(min([start, *starts]), end, max(now, start), bars)


def _bar(step: StepView) -> Bar:
    queued, started, ended = map(_stamp, (step.queued_at, step.started_at, step.finished_at))
    waits = step.state is State.QUEUED
    if waits:  # what an earlier attempt left does not belong to this wait
        started = ended = None
    queue = None
    if queued is not None and (started is not None or ended is not None or waits):
        queue = Span(queued, started if started is not None else ended)
    run = None if started is None else Span(started, ended)
    return Bar(step, queue, run)


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
