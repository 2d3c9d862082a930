"""One transaction's changes to one job: its steps, their attempts, the events that tell of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, ScalarSelect, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.bus import Message
from kgym.errors import InfrastructureError
from kgym.jobs import Progress
from kgym.states import Event, State, after, job_state, sources
from kgym.steps import StepKind
from kgym_scheduler.tables import PROGRESS, attempts, events, jobs, steps

REPUBLISH = timedelta(seconds=10)
"""How long a queued step's message may be under way before the sweeper sends another."""


@dataclass(slots=True)
class Step:
    """What of a step decides its next state."""

    id: int
    number: int
    kind: StepKind
    state: State
    attempt: int
    tries: int
    lease: UUID | None
    lease_until: datetime | None
    not_before: datetime | None
    progressed: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """What others have to be told once the change is committed."""

    job_id: int
    queued: tuple[Message, ...] = ()
    stopped: tuple[UUID, ...] = ()
    """The leases that are gone."""


@dataclass(slots=True)
class JobChange:
    """A job in the middle of a transaction.

    Each change of state is one UPDATE on the condition of the state and lease
    that were read; where the condition fails, the whole transaction does.
    """

    connection: AsyncConnection
    now: datetime
    job_id: int
    priority: int
    steps: list[Step]
    _told: list[tuple[Step, State, dict[str, object]]] = field(default_factory=list)
    _queued: list[Message] = field(default_factory=list)
    _stopped: list[UUID] = field(default_factory=list)

    @classmethod
    async def load(
        cls, connection: AsyncConnection, now: datetime, job_id: int | ScalarSelect[int]
    ) -> "JobChange | None":
        """Read the job's steps; None if there is no such job."""
        s = steps.c
        columns = (s.id, s.number, s.kind, s.state, s.attempt, s.tries, s.lease)
        times = (s.lease_until, s.not_before)
        rows = await connection.execute(
            select(s.job_id, jobs.c.priority, *columns, *times, s.progress.is_not(None))
            .join(jobs)
            .where(s.job_id == job_id)
            .order_by(s.number)
        )
        found = rows.all()
        if not found:
            return None
        parts = [
            Step(id_, number, StepKind(kind), State(state), *rest)
            for _, _, id_, number, kind, state, *rest in found
        ]
        return cls(connection, now, found[0].job_id, found[0].priority, parts)

    @property
    def state(self) -> State:
        """The state of the job, as its steps stand now."""
        return job_state([step.state for step in self.steps])

    async def claim(self, step: Step, lease: UUID, worker: str, until: datetime) -> str:
        """Begin an attempt; return the step's spec."""
        spec = await self.connection.scalar(
            update(steps)
            .where(steps.c.id == step.id, steps.c.state.in_(sources(Event.CLAIM)))
            .values(
                state=after(step.state, Event.CLAIM),
                attempt=step.attempt + 1,
                tries=step.tries + 1,
                lease=lease,
                lease_until=until,
                worker=worker,
                started_at=self.now,
                failure=None,
                artifacts="[]",
            )
            .returning(steps.c.spec)
        )
        if spec is None:
            raise self._raced()
        step.state = after(step.state, Event.CLAIM)
        step.attempt, step.tries, step.lease = step.attempt + 1, step.tries + 1, lease
        await self.connection.execute(
            insert(attempts).values(
                lease=lease,
                step_id=step.id,
                number=step.attempt,
                worker=worker,
                started_at=self.now,
            )
        )
        self._tell(step, worker=worker)
        return str(spec)

    async def end(self, step: Step, event: Event, outcome: str, **values: object) -> None:
        """End the running attempt of a step."""
        await self._close_attempt(step, outcome)
        if after(step.state, event).final:
            values["finished_at"] = self.now
        await self._update([step], event, values)
        self._tell(step, **_failure(values))

    async def requeue(
        self, step: Step, outcome: str, *, delay: float = 0, **values: object
    ) -> None:
        """End the running attempt of a step, to be followed by another after `delay` seconds."""
        await self._close_attempt(step, outcome)
        await self._enqueue(step, Event.RETRY, delay, values)
        self._tell(step, **_failure(values))

    async def enqueue(self, step: Step) -> None:
        """Queue a pending step."""
        await self._enqueue(step, Event.ENQUEUE, 0, {})
        self._tell(step)

    async def move(self, moved: Sequence[Step], event: Event, **values: object) -> None:
        """Let `event` happen to steps that do not run, all in one UPDATE."""
        if moved:
            await self._update(moved, event, values)
            for step in moved:
                self._tell(step)

    async def close(self) -> Changed:
        """Write the job's own state and the events."""
        state = self.state
        await self.connection.execute(
            update(jobs).where(jobs.c.id == self.job_id).values(state=state, updated_at=self.now)
        )
        await self.connection.execute(
            insert(events),
            [
                {
                    "job_id": self.job_id,
                    "step": step.number,
                    "attempt": step.attempt,
                    "kind": "state",
                    "at": self.now,
                    "data": json.dumps({"state": told, "job_state": state, **data}),
                }
                for step, told, data in self._told
            ],
        )
        return Changed(self.job_id, tuple(self._queued), tuple(self._stopped))

    def _tell(self, step: Step, **data: object) -> None:
        self._told.append((step, step.state, {"attempt": step.attempt, **data}))

    async def _enqueue(
        self, step: Step, event: Event, delay: float, values: dict[str, object]
    ) -> None:
        begin = self.now + timedelta(seconds=delay)
        values |= {"queued_at": self.now, "not_before": begin}
        if delay:
            values["publish_at"] = begin
        else:
            values["publish_at"] = begin + REPUBLISH
            self._queued.append(Message(step.id, step.kind, self.priority))
        await self._update([step], event, values)

    async def _close_attempt(self, step: Step, outcome: str) -> None:
        await self.connection.execute(
            update(attempts)
            .where(attempts.c.lease == step.lease)
            .values(ended_at=self.now, outcome=outcome)
        )
        if step.progressed:
            await self.connection.execute(
                delete(events).where(
                    PROGRESS, events.c.job_id == self.job_id, events.c.step == step.number
                )
            )
        if step.lease is not None:
            self._stopped.append(step.lease)

    async def _update(self, moved: Sequence[Step], event: Event, values: dict[str, object]) -> None:
        target = after(moved[0].state, event)
        leases = [step.lease for step in moved if step.lease]
        changed = await self.connection.execute(
            update(steps)
            .where(steps.c.id.in_([step.id for step in moved]))
            .where(steps.c.state.in_(sources(event)))
            .where(or_(steps.c.lease.is_(None), steps.c.lease.in_(leases)))
            .values(state=target, lease=None, lease_until=None, progress=None, **values)
        )
        if changed.rowcount != len(moved):
            raise self._raced()
        for step in moved:
            step.state, step.lease, step.progressed = target, None, False

    def _raced(self) -> InfrastructureError:
        return InfrastructureError(
            "change_raced", f"job {self.job_id} was changed by another at the same moment"
        )


def news(
    step: Row[Any], now: datetime, log: str, progress: Progress | None
) -> list[dict[str, object]]:
    """Return the events of a report."""
    data: dict[str, dict[str, object]] = {}
    if log:
        data["log"] = {"attempt": step.attempt, "text": log}
    if progress:
        data["progress"] = {"attempt": step.attempt, **progress.model_dump()}
    return [
        {
            "job_id": step.job_id,
            "step": step.number,
            "attempt": step.attempt,
            "kind": kind,
            "at": now,
            "data": json.dumps(fields),
        }
        for kind, fields in data.items()
    ]


def _failure(values: dict[str, object]) -> dict[str, object]:
    failure = values.get("failure")
    return {"failure": json.loads(failure)} if isinstance(failure, str) else {}
