"""Reasons and estimates for queued steps."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.errors import KgymError

if TYPE_CHECKING:
    from kgym.client import Client

# Before the first query: the scheduler gives no reason for steps that were just queued.
FIRST_SECONDS = 3.0
# Longest pause between queries. Pauses grow, so that a log does not fill with reasons.
LAST_SECONDS = 60.0


def words(step: StepView) -> str:
    """Return why a step waits, its position and an estimate; empty if it is not queued."""
    if step.state is not State.QUEUED:
        return ""
    parts = [step.waiting] if step.waiting else []
    if step.ahead:
        parts.append(f"{step.ahead} {'step' if step.ahead == 1 else 'steps'} before it")
    if step.begins_in and not step.waiting:
        parts.append(f"starts in about {duration(step.begins_in)}")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Return an approximate duration."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Watch:
    """Thread that queries why a job's step is queued, while another thread follows its events."""

    def __init__(self, client: "Client", job_id: int, tell: Callable[[int, str], None]) -> None:
        self._client = client
        self._job_id = job_id
        self._tell = tell
        self._queued = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._queued.set()

    def saw(self, job: JobView | None = None, state: str = "") -> None:
        """Record the state of the job or of a step."""
        states = {state} if job is None else {str(step.state) for step in job.steps}
        if "queued" in states:
            self._queued.set()
        else:
            self._queued.clear()

    def _look(self) -> None:
        last, pause = "", FIRST_SECONDS
        while not self._ended.is_set():
            self._queued.wait()
            if self._ended.wait(pause) or not self._queued.is_set():
                pause = FIRST_SECONDS
                continue
            # Doubled: a step in a long queue is asked about less and less.
            pause = min(2 * pause, LAST_SECONDS)
            try:
                job = self._client.job(self._job_id)
            except (
                KgymError,
                RuntimeError,
            ):  # reported by the thread that follows, or closed client
                continue
            for step in job.steps:
                reason = words(step)
                if reason and reason != last and not self._ended.is_set():
                    self._tell(step.number, reason)
                    last = reason
