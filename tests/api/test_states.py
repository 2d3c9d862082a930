"""The life of steps and jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.states import Event, IllegalTransition, State, after, job_state, retry_delay, sources
from tests.tables import json_rows


def test_a_step_goes_from_pending_to_succeeded() -> None:
    state = State.PENDING
    for event in (Event.ENQUEUE, Event.CLAIM, Event.SUCCEED):
        state = after(state, event)
    assert state is State.SUCCEEDED


def test_a_retry_queues_a_running_step_again() -> None:
    assert after(State.RUNNING, Event.RETRY) is State.QUEUED


@pytest.mark.parametrize("event", [Event.CLAIM, Event.SUCCEED, Event.FAIL, Event.ABORT])
def test_nothing_but_a_restart_happens_to_a_finished_step(event: Event) -> None:
    for state in State:
        if state.final:
            with pytest.raises(IllegalTransition, match=f"is {state} cannot {event}"):
                after(state, event)
            assert after(state, Event.RESTART) is State.PENDING


@given(st.sampled_from(Event), st.sampled_from(State))
def test_an_event_is_legal_exactly_in_its_sources(event: Event, state: State) -> None:
    if state in sources(event):
        assert after(state, event) in State
    else:
        with pytest.raises(IllegalTransition):
            after(state, event)


@pytest.mark.parametrize(("steps", "job"), json_rows(__file__, "step_states.jsonl"))
def test_the_first_step_that_has_not_succeeded_decides_the_job(steps: str, job: str) -> None:
    assert job_state([State(step) for step in steps.split()]) is State(job)


def test_retries_wait_longer_and_longer_up_to_a_minute() -> None:
    delays = [retry_delay(attempt) for attempt in range(1, 10)]
    assert delays == sorted(delays)
    assert delays[-1] == 60
