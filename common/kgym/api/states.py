"""The life of steps and jobs as a pure state machine.

A step goes pending → queued → running → succeeded | failed. A job's state is computed from those
of its steps, and never set independently.
"""

from collections.abc import Sequence
from enum import StrEnum

from kgym.errors import KgymError


class State(StrEnum):
    """State of a job or of a step; a job is never `skipped`."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        """Whether the state can change only by a restart."""
        return self not in (State.PENDING, State.QUEUED, State.RUNNING)


class Event(StrEnum):
    """Events of a step."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    ABORT = "abort"
    SKIP = "skip"
    RESTART = "restart"


_TRANSITIONS: dict[Event, dict[State, State]] = {
    Event.ENQUEUE: {State.PENDING: State.QUEUED},
    Event.CLAIM: {State.QUEUED: State.RUNNING},
    Event.SUCCEED: {State.RUNNING: State.SUCCEEDED},
    Event.FAIL: {State.RUNNING: State.FAILED},
    Event.RETRY: {State.RUNNING: State.QUEUED},
    Event.ABORT: {
        State.PENDING: State.ABORTED,
        State.QUEUED: State.ABORTED,
        State.RUNNING: State.ABORTED,
    },
    Event.SKIP: {State.PENDING: State.SKIPPED},
    Event.RESTART: dict.fromkeys(
        (State.SUCCEEDED, State.FAILED, State.ABORTED, State.SKIPPED), State.PENDING
    ),
}


class IllegalTransition(KgymError):
    """An event that cannot happen in this state."""


def sources(event: Event) -> tuple[State, ...]:
    """Return the states in which `event` may happen: the WHERE of the conditional UPDATE."""
    return tuple(_TRANSITIONS[event])


def after(state: State, event: Event) -> State:
    """Return the state after the event; raise IllegalTransition if it is not allowed."""
    try:
        return _TRANSITIONS[event][state]
    except KeyError:
        raise IllegalTransition(
            "illegal_transition", f"a step that is {state} cannot {event}", state=state, event=event
        ) from None


def job_state(steps: Sequence[State]) -> State:
    """Return the state of a job with these steps, in order.

    The first step that is not `succeeded` decides: steps run one after the
    other, so all before it have succeeded and all after it wait for it.
    """
    return next((state for state in steps if state is not State.SUCCEEDED), State.SUCCEEDED)


def retry_delay(attempt: int) -> float:
    """Return the seconds to wait before the attempt that follows number `attempt` (1, 2, …)."""
    # Exponential back-off: an outage of storage or broker often lasts longer than one attempt.
    return min(60.0, 2.0**attempt)
