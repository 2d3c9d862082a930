"""Any sequence of calls leaves the store where the pure state machine says."""

import asyncio
import shutil
import tempfile
import uuid
from pathlib import Path

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

from kgym.jobs import JobRequest
from kgym.states import Event, State, after, job_state, sources
from kgym.worker import Ending
from kgym_scheduler.refusals import Conflict
from kgym_scheduler.rules import MAX_ATTEMPTS
from kgym_scheduler.store import Store
from tests.scheduler.parts import BUILD, WELL, Clock, badly


class Jobs(RuleBasedStateMachine):
    """Users, workers and time act on one store; `self.states` is what the pure machine says."""

    template: Path
    leases: Bundle[uuid.UUID] = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        path = shutil.copyfile(self.template, self.folder / "kgym.db")
        self.clock = Clock()
        self.runner = asyncio.Runner()
        self.store = Store(f"sqlite+aiosqlite:///{path}", 60, self.clock)
        self.states: dict[int, list[State]] = {}
        self.tries: dict[int, int] = {}
        self.held: dict[uuid.UUID, tuple[int, int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    # --- what can happen ----------------------------------------------------------------

    @rule(steps=st.integers(1, 3))
    def submit(self, steps: int) -> None:
        view, _ = self.runner.run(self.store.submit(JobRequest(steps=[BUILD] * steps)))
        self.states[view.id] = [State.QUEUED] + [State.PENDING] * (steps - 1)

    @rule(target=leases, data=st.data())
    def claim(self, data: st.DataObject) -> uuid.UUID:
        step_id = data.draw(st.integers(1, max(1, self._steps())))
        self.clock.advance(5)  # past any delay of a retry
        assignment, _ = self.runner.run(self.store.claim(step_id, "worker"))
        job, number = self._place(step_id)
        queued = bool(job) and self.states[job][number] in sources(Event.CLAIM)
        assert (assignment is not None) == queued
        if assignment is None:
            return uuid.uuid4()
        self._move(job, number, Event.CLAIM)
        self.tries[step_id] = self.tries.get(step_id, 0) + 1
        self.held[assignment.lease] = job, number
        return assignment.lease

    @rule(lease=consumes(leases), ending=st.sampled_from(["well", "user", "infrastructure"]))
    def finish(self, lease: uuid.UUID, ending: str) -> None:
        said: Ending = WELL if ending == "well" else badly(ending)
        changed = self.runner.run(self.store.finish(lease, said))
        assert (changed is not None) == (lease in self.held)
        if changed is None:
            return
        job, number = self.held.pop(lease)
        if ending == "well":
            self._move(job, number, Event.SUCCEED)
            if number + 1 < len(self.states[job]):
                self._move(job, number + 1, Event.ENQUEUE)
        elif ending == "infrastructure" and self.tries[self._id(job, number)] < MAX_ATTEMPTS:
            self._move(job, number, Event.RETRY)
        else:
            self._fail(job, number)
        assert self.runner.run(self.store.finish(lease, said)) is not None

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
            self.tries[self._id(job, number)] -= 1

    @rule()
    def expire(self) -> None:
        self.clock.advance(61)
        self.runner.run(self.store.expire())
        for job, number in self.held.values():
            if self.tries[self._id(job, number)] < MAX_ATTEMPTS:
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
            self.tries[self._id(job, number)] = 0
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

    def _steps(self) -> int:
        return sum(map(len, self.states.values()))

    def _id(self, job: int, number: int) -> int:
        """Step ids count up over all jobs."""
        return sum(len(self.states[other]) for other in range(1, job)) + number + 1

    def _place(self, step_id: int) -> tuple[int, int]:
        for job, states in self.states.items():
            if step_id <= len(states):
                return job, step_id - 1
            step_id -= len(states)
        return 0, 0


def test_the_store_follows_the_pure_state_machine(empty_database: Path) -> None:
    class OnThisDatabase(Jobs):
        template = empty_database

    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
