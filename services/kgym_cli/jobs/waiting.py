"""Why a queued step does not begin, and how soon it may, for people who wait for it."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.errors import KgymError

if TYPE_CHECKING:
    from kgym.client import Client

# The first look; the scheduler says nothing of steps that have only just been queued.
FIRST_SECONDS = 3.0
# How long the pauses between two looks become: a log shall not fill with them.
LAST_SECONDS = 60.0


def words(step: StepView) -> str:
    """Return why the step waits, its place in the queue and an estimate; empty if it does not."""
    if step.state is not State.QUEUED:
        return ""
    parts = [step.waiting] if step.waiting else []
    if step.ahead:
        parts.append(f"{step.ahead} {'step' if step.ahead == 1 else 'steps'} before it")
    if step.begins_in and not step.waiting:
        parts.append(f"begins in about {duration(step.begins_in)}")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Return about how long it is, in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Watch:
    """Asks, beside whoever follows a job's events, what its queued step waits for."""

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
        """Note the state that the job, or a step of it, is in."""
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
            pause = min(2 * pause, LAST_SECONDS)
            try:
                job = self._client.job(self._job_id)
            except (KgymError, RuntimeError):  # whoever follows the job says so; or all is over
                continue
            for step in job.steps:
                reason = words(step)
                if reason and reason != last and not self._ended.is_set():
                    self._tell(step.number, reason)
                    last = reason
