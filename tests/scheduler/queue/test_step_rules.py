"""Any sequence of calls leaves the store where the pure state machine says."""

import asyncio
import uuid

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kgym.api.jobs import JobRequest
from kgym.api.states import Event, State, after, job_state, sources
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import Conflict
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.step_rules import MAX_ATTEMPTS
from tests.scheduler.parts import BUILD, WELL, Clock, badly, claim_of


class Jobs(RuleBasedStateMachine):
    """Users, workers and time act on one store; `self.states` is what the pure machine says."""

    leases: Bundle[uuid.UUID] = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.clock.stop()
        self.runner = asyncio.Runner()
        self.store = JobStore(self.new_database(), 60, self.clock)
        self.states: dict[int, list[State]] = {}
        self.tries: dict[tuple[int, int], int] = {}
        self.held: dict[uuid.UUID, tuple[int, int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()

    def new_database(self) -> str:
        """The URL of a database with empty tables."""
        raise NotImplementedError

    # --- what can happen ----------------------------------------------------------------

    @rule(steps=st.integers(1, 3))
    def submit(self, steps: int) -> None:
        view, _ = self.runner.run(self.store.submit(JobRequest(steps=[BUILD] * steps)))
        self.states[view.id] = [State.QUEUED] + [State.PENDING] * (steps - 1)

    @rule(target=leases)
    def claim(self) -> uuid.UUID:
        self.clock.advance(5)  # past any delay of a retry
        claimed, _ = self.runner.run(self.store.claim(claim_of()))
        queued = [
            (job, number)
            for job, states in self.states.items()
            for number, state in enumerate(states)
            if state in sources(Event.CLAIM)
        ]
        assert bool(claimed.assignments) == bool(queued)
        if not queued:
            return uuid.uuid4()
        [assignment] = claimed.assignments
        place = assignment.job_id, assignment.number
        assert place in queued
        self._move(*place, Event.CLAIM)
        self.tries[place] = self.tries.get(place, 0) + 1
        self.held[assignment.lease] = place
        return assignment.lease

    @rule(lease=consumes(leases), ending=st.sampled_from(["well", "user", "infrastructure"]))
    def finish(self, lease: uuid.UUID, ending: str) -> None:
        report: AttemptEnding = WELL if ending == "well" else badly(ending)
        changed = self.runner.run(self.store.finish(lease, report))
        assert (changed is not None) == (lease in self.held)
        if changed is None:
            return
        job, number = self.held.pop(lease)
        if ending == "well":
            self._move(job, number, Event.SUCCEED)
            if number + 1 < len(self.states[job]):
                self._move(job, number + 1, Event.ENQUEUE)
        elif ending == "infrastructure" and self.tries[job, number] < MAX_ATTEMPTS:
            self._move(job, number, Event.RETRY)
        else:
            self._fail(job, number)
        assert self.runner.run(self.store.finish(lease, report)) is not None

    @rule(lease=leases)
    def report(self, lease: uuid.UUID) -> None:
        changed = self.runner.run(self.store.report(lease, "text", None))
        assert (changed is not None) == (lease in self.held)

    @rule(lease=leases)
    def release(self, lease: uuid.UUID) -> None:
        if lease in self.held:
            assert self.runner.run(self.store.release(lease)) is not None
            job, number = self.held.pop(lease)
            self._move(job, number, Event.RETRY)
            self.tries[job, number] -= 1

    @rule()
    def expire(self) -> None:
        self.clock.advance(61)
        self.runner.run(self.store.expire())
        for job, number in self.held.values():
            if self.tries[job, number] < MAX_ATTEMPTS:
                self._move(job, number, Event.RETRY)
            else:
                self._fail(job, number)
        self.held.clear()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if not self.states:
            return
        job = data.draw(st.sampled_from(sorted(self.states)))
        before = job_state(self.states[job])
        try:
            self.runner.run(self.store.abort(job))
        except Conflict:
            assert before.final
            assert before is not State.ABORTED
            return
        for number, state in enumerate(self.states[job]):
            if not state.final:
                self._move(job, number, Event.ABORT)
        self.held = {lease: place for lease, place in self.held.items() if place[0] != job}

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        if not self.states:
            return
        job = data.draw(st.sampled_from(sorted(self.states)))
        states = self.states[job]
        first = data.draw(st.integers(0, len(states) - 1))
        allowed = job_state(states).final and all(s is State.SUCCEEDED for s in states[:first])
        try:
            self.runner.run(self.store.restart(job, first))
        except Conflict:
            assert not allowed
            return
        assert allowed
        for number in range(first, len(states)):
            self._move(job, number, Event.RESTART)
            self.tries[job, number] = 0
        self._move(job, first, Event.ENQUEUE)

    # --- what always holds --------------------------------------------------------------

    @invariant()
    def the_store_agrees(self) -> None:
        for job, states in self.states.items():
            view = self.runner.run(self.store.get(job))
            assert [step.state for step in view.steps] == states
            assert view.state is job_state(states)

    # --- the model ----------------------------------------------------------------------

    def _move(self, job: int, number: int, event: Event) -> None:
        self.states[job][number] = after(self.states[job][number], event)

    def _fail(self, job: int, number: int) -> None:
        self._move(job, number, Event.FAIL)
        for later in range(number + 1, len(self.states[job])):
            self._move(job, later, Event.SKIP)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_store_follows_the_pure_state_machine(
    kind: str, request: pytest.FixtureRequest
) -> None:
    new_database = request.getfixturevalue(f"new_{kind}")

    class OnThisDatabase(Jobs):
        def new_database(self) -> str:
            return str(new_database())

    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=10,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
