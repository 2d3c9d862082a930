"""Steps that begin as their job is stored: leased in the same transaction to a worker with room.

So a worker that is idle has a step without asking for it. Only where nothing waits in the lane
that could begin instead, so nobody is overtaken. Such a step takes no turn (see `fair_queue`):
turns are counted among those who wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from kgym.api.states import State
from kgym.api.steps import StepSpec
from kgym.api.worker_calls import Assignment
from kgym_scheduler.queue.claimed_jobs import ClaimedJobs
from kgym_scheduler.queue.job_changes import JobChange, Step

HANDED = 64 << 10
"""Characters of a step that may be sent to a worker; it fetches larger ones."""
NOBODY_WAITS = """
NOT EXISTS (SELECT FROM steps WHERE state = 'queued' AND lane = :lane AND not_before <= :now)
"""


@dataclass(frozen=True, slots=True)
class Room:
    """A place for one step at a worker, and the lease that it will have there."""

    worker: str
    lease: UUID


@dataclass(frozen=True, slots=True)
class Handing:
    """What is needed to hand out steps."""

    lease: timedelta
    """How long a lease lasts."""
    claimed: ClaimedJobs
    """Gets the jobs whose first step was handed out."""


class HandedJob:
    """A new job whose first step begins at once."""

    def __init__(
        self,
        now: datetime,
        until: datetime,
        room: Room,
        submitter: str,
        specs: Sequence[StepSpec],
        lanes: Sequence[int],
        rank: int,
    ) -> None:
        self._room = room
        self._spec = specs[0]
        first, *later = (
            _new(number, spec, lane, rank)
            for number, (spec, lane) in enumerate(zip(specs, lanes, strict=True))
        )
        first.state = State.QUEUED
        self._change = JobChange(now, 0, submitter, State.QUEUED, [first, *later], None)
        self._change.claim(first, room.lease, room.worker, until)

    @property
    def state(self) -> State:
        """The state of the job."""
        return self._change.state

    def steps(self, rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """Return the rows of the steps, given as they would be queued, as they are now."""
        begun = self._change.steps[0].values
        first, *later = ({**dict.fromkeys(begun), **row} for row in rows)
        return [first | begun, *later]

    def events(self) -> list[dict[str, object]]:
        """Return what has happened since it was queued, as rows of a new job."""
        return [{"new_job": 1, **_without(row, "job_id")} for row in self._change.events({})]

    def attempts(self) -> list[dict[str, object]]:
        """Return the attempt that has begun, as a row of a new step."""
        return [{"new_step": 0, **_without(row, "step_id")} for row in self._change.begun]

    def written(self, job_id: int, step_ids: Sequence[int], version: int | None) -> JobChange:
        """Return the job as it was written."""
        self._change.id, self._change.version = job_id, version
        for step, step_id in zip(self._change.steps, step_ids, strict=True):
            step.id = step_id
        return self._change

    def assignment(self) -> Assignment:
        """Return what the worker has to be sent, once the job is written."""
        first = self._change.steps[0]
        return Assignment(
            step_id=first.id,
            job_id=self._change.id,
            number=first.number,
            attempt=first.attempt,
            lease=self._room.lease,
            spec=self._spec,
            inputs={},
        )


def _new(number: int, spec: StepSpec, lane: int, rank: int) -> Step:
    was = State.PENDING, None
    rest = (0, 0, None, None, None, None, False, None, was)
    return Step(0, number, spec.kind, lane, rank, State.PENDING, *rest)


def _without(row: Mapping[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in row.items() if key != name}
