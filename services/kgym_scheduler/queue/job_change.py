"""A job in a transaction: its steps as the rules see them, and what is to be written."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kgym.api.states import Event, State, after, job_state
from kgym.api.steps import StepKind, StepResult

_UNLEASED: dict[str, object] = {"lease": None, "lease_until": None, "progress": None}


# Whether a build's unpatched tree was cached, and the SuiteCache entry of a build or check.
Used = tuple[bool | None, str | None]


@dataclass(slots=True)
class Step:
    """A step as the rules see it, and the values to write."""

    id: int
    number: int
    kind: StepKind
    lane: int
    rank: int
    state: State
    attempt: int
    tries: int
    lease: UUID | None
    lease_until: datetime | None
    not_before: datetime | None
    started_at: datetime | None
    progressed: bool
    spec: str | None
    """Only of a queued step."""
    was: tuple[State, UUID | None]
    values: dict[str, object] = field(default_factory=dict)
    answer: StepResult | None = None
    """The result of the attempt that ends now."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended, for metrics."""

    lease: UUID
    kind: StepKind
    outcome: str
    seconds: float
    again: bool
    """Whether another attempt follows."""
    cached: bool | None
    """Of a successful build: whether the unpatched tree was cached."""
    entry: str | None
    """Of a successful build or check: its SuiteCache entry."""
    cause: str | None
    reason: str | None
    """Cause and reason are those of a failure."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a job, for workers and followers, once it is committed."""

    job_id: int
    queued: tuple[StepKind, ...] = ()
    """The kinds of steps that workers have to be notified of."""
    ended: tuple[EndedAttempt, ...] = ()


@dataclass(slots=True)
class JobChange:
    """A job in a transaction; nothing is written before `Changes.write`."""

    now: datetime
    id: int
    submitter: str
    was: State
    steps: list[Step]
    moves: list[tuple[int, int, State, dict[str, object]]] = field(default_factory=list)
    """Events of steps: number, attempt, new state, further data."""
    queued: list[Step] = field(default_factory=list)
    begun: list[dict[str, Any]] = field(default_factory=list)
    ended: list[EndedAttempt] = field(default_factory=list)
    quiet: list[Step] = field(default_factory=list)
    """Steps whose progress events are deleted."""

    @property
    def state(self) -> State:
        """The state of the job, computed from its steps."""
        return job_state([step.state for step in self.steps])

    def claim(self, step: Step, lease: UUID, worker: str, until: datetime) -> None:
        """Start an attempt: lease the step to the worker until `until`."""
        step.attempt, step.tries = step.attempt + 1, step.tries + 1
        self._move(
            step,
            Event.CLAIM,
            attempt=step.attempt,
            tries=step.tries,
            lease=lease,
            lease_until=until,
            worker=worker,
            started_at=self.now,
            failure=None,
            artifacts="[]",
            artifacts_gone_at=None,
        )
        step.lease, step.started_at = lease, self.now
        self.begun.append(
            {
                "lease": lease,
                "step_id": step.id,
                "number": step.attempt,
                "kind": step.kind,
                "worker": worker,
                "started_at": self.now,
            }
        )
        self._note(step, worker=worker)

    def end(
        self, step: Step, event: Event, outcome: str, used: Used = (None, None), **values: object
    ) -> None:
        """End the running attempt of a step."""
        failure = _failure(values)
        self._end_attempt(step, outcome, failure, used, again=False)
        self._move(step, event, finished_at=self.now, **_UNLEASED, **values)
        self._note(step, **failure)

    def requeue(self, step: Step, outcome: str, *, delay: float = 0, **values: object) -> None:
        """End the running attempt of a step, and queue it again after `delay` seconds."""
        failure = _failure(values)
        self._end_attempt(step, outcome, failure, (None, None), again=True)
        self._enqueue(step, Event.RETRY, delay, values)
        self._note(step, **failure)

    def enqueue(self, step: Step) -> None:
        """Queue a pending step."""
        self._enqueue(step, Event.ENQUEUE, 0, {})
        self._note(step)

    def move(self, moved: Iterable[Step], event: Event, **values: object) -> None:
        """Apply `event` to steps that do not run."""
        for step in moved:
            self._move(step, event, **values)
            self._note(step)

    def _move(self, step: Step, event: Event, **values: object) -> None:
        step.state = after(step.state, event)
        step.values |= {"state": step.state, **values}

    def _enqueue(self, step: Step, event: Event, delay: float, values: dict[str, object]) -> None:
        begin = self.now + timedelta(seconds=delay)
        self._move(step, event, queued_at=self.now, not_before=begin, **_UNLEASED, **values)
        self.queued.append(step)
        step.not_before = begin

    def _end_attempt(
        self, step: Step, outcome: str, values: Mapping[str, Any], used: Used, *, again: bool
    ) -> None:
        if step.lease is not None:
            seconds = (self.now - (step.started_at or self.now)).total_seconds()
            failure = values.get("failure", {})
            why = failure.get("cause"), _word(failure.get("reason"))
            ended = EndedAttempt(step.lease, step.kind, outcome, seconds, again, *used, *why)
            self.ended.append(ended)
        if step.progressed:
            self.quiet.append(step)
        step.lease = None

    def events(self, conclusion: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the events as rows; each has the job's state at the end of the transaction.

        The last event of a job has its outcome and the reason, too.
        """
        job_state = {"job_state": self.state}
        if self.moves and self.state.final:
            self.moves[-1][-1].update(outcome=conclusion["outcome"], reason=conclusion["reason"])
        return [
            {
                "job_id": self.id,
                "step": number,
                "attempt": attempt,
                "kind": "state",
                "at": self.now,
                "data": json.dumps({"state": state, **job_state, "attempt": attempt, **data}),
            }
            for number, attempt, state, data in self.moves
        ]

    def _note(self, step: Step, **data: object) -> None:
        self.moves.append((step.number, step.attempt, step.state, data))


def _failure(values: dict[str, object]) -> dict[str, object]:
    failure = values.get("failure")
    return {"failure": json.loads(failure)} if isinstance(failure, str) else {}


def _word(reason: str | None) -> str | None:
    """Return a reason that a worker sent without characters that a database may refuse."""
    return reason and "".join(c if c.isprintable() else " " for c in reason)
