"""Adding jobs, one for each idempotency key."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from pydantic import ValidationError
from sqlalchemy import bindparam, select, tuple_
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import JobRequest, JobView, StepView
from kgym.api.states import Event, State, after
from kgym.api.steps import StepSpec
from kgym.api.steps.kernel import Kernel
from kgym.bugs.conclusion import under_way
from kgym.bugs.config_symbols import check_architecture
from kgym.errors import UserError
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import LOCAL, events, facets, groups, jobs, steps
from kgym_scheduler.queue import capability_lanes, fair_queue, step_inputs
from kgym_scheduler.queue.job_change import Changed
from kgym_scheduler.queue.row_writes import lanes_to_notify

FIRST = after(State.PENDING, Event.ENQUEUE)
_KEYS = select(jobs.c.id, jobs.c.submitter, jobs.c.idempotency_key, jobs.c.body_hash).where(
    tuple_(jobs.c.submitter, jobs.c.idempotency_key).in_(bindparam("keys", expanding=True))
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to add, with its submitter and idempotency key."""

    request: JobRequest
    key: str | None = None
    submitter: str = LOCAL
    log: str = ""
    specs: tuple[str, ...] = field(init=False)
    """The steps as stored."""
    places: tuple[capability_lanes.Place, ...] = field(init=False)
    """The lane of each step."""
    hash: str | None = field(init=False)
    """Hash of the request, if it has a key."""

    def __post_init__(self) -> None:
        steps = self.request.steps
        for step in steps:
            if isinstance(step, Kernel):  # before it waits in the queue for a worker to see it
                check_architecture(step.config.texts)
        object.__setattr__(self, "specs", tuple(map(_stored, steps)))
        object.__setattr__(self, "places", tuple(map(capability_lanes.place, steps)))
        object.__setattr__(self, "hash", _hash(self.request) if self.key else None)

    @property
    def own_key(self) -> "_Key | None":
        """The key with its submitter: submitters cannot use each other's keys."""
        return (self.submitter, self.key) if self.key else None

    @property
    def rank(self) -> int:
        """The rank of its steps."""
        return -self.request.priority

    @property
    def queue(self) -> fair_queue.Queue:
        """The fair queue of its first step."""
        return self.submitter, str(self.request.steps[0].kind), self.rank


# The added job, or the id of the job for which its key was used before.
Added = tuple[JobView, Changed] | int
# A submitter and an idempotency key.
_Key = tuple[str, str]
# By key, the job and the hash of its request.
_Known = dict[_Key, tuple[int, str | None]]


async def add(
    connection: AsyncConnection,
    now: datetime,
    submissions: Sequence[Submission],
    known_lanes: dict[capability_lanes.Place, int],
    locate: Callable[[int, UserError], UserError] = lambda _, error: error,
) -> list[Added]:
    """Insert the jobs, with their first steps queued; return each.

    If a job cannot be added, raises its UserError, to which `locate` adds the job's number. Raises
    Conflict on a race with another transaction for a key: then try again.
    """
    known = await _known(connection, [s.own_key for s in submissions if s.own_key])
    answers: dict[int, Added] = {}
    new: dict[int, Submission] = {}
    for number, submission in enumerate(submissions):
        try:
            if submission.own_key in known:
                answers[number] = _repeated(submission, known)
            else:
                await step_inputs.check(connection, submission.request.steps)
                new[number] = submission
        except UserError as error:
            raise locate(number, error) from error
    if new:
        inserted = await _insert(connection, now, list(new.values()), known_lanes)
        answers |= dict(zip(new, inserted, strict=True))
    return [answers[number] for number in range(len(submissions))]


async def _known(connection: AsyncConnection, keys: Sequence[_Key]) -> _Known:
    if not keys:
        return {}
    result = await connection.execute(_KEYS, {"keys": list(keys)})
    return {(row.submitter, row.idempotency_key): (row.id, row.body_hash) for row in result.all()}


def _repeated(submission: Submission, known: _Known) -> int:
    """Return the job of the key; raise UserError if the key was used for another request."""
    job_id, body_hash = known[submission.submitter, submission.key or ""]
    if body_hash == submission.hash:
        return job_id
    raise UserError(
        "key_reused",
        f"the idempotency key {submission.key!r} was used for job {job_id}, which is another "
        "request; use a new key for a new job",
        job=job_id,
    )


async def _insert(
    connection: AsyncConnection,
    now: datetime,
    new: Sequence[Submission],
    known_lanes: dict[capability_lanes.Place, int],
) -> list[tuple[JobView, Changed]]:
    places = {place for submission in new for place in submission.places}
    lane_ids = await capability_lanes.numbers(connection, places, known_lanes)
    if group_rows := _group_rows(now, new):
        await connection.execute(insert(groups).on_conflict_do_nothing(), group_rows)
    numbered = plain_insert(jobs).returning(jobs.c.id, sort_by_parameter_order=True)
    job_rows = [_job_row(now, submission) for submission in new]
    job_ids = (await connection.scalars(numbered, job_rows)).all()
    added = list(zip(job_ids, new, strict=True))
    facet_rows = [row for job in added for row in _facet_rows(now, *job)]
    await connection.execute(plain_insert(facets), facet_rows)
    event_rows = [row for job_id, job in added for row in _event_rows(now, job_id, job.log)]
    await connection.execute(plain_insert(events), event_rows)
    # Turns come late in the transaction: their rows stay locked until its end.
    notified = await lanes_to_notify(connection, {lane_ids[s.places[0]] for s in new})
    turns = await fair_queue.give_turns(connection, Counter(s.queue for s in new))
    step_rows = []
    for job_id, submission in added:
        turns[submission.queue] += 1
        step_rows += _step_rows(now, lane_ids, turns[submission.queue], job_id, submission)
    await connection.execute(plain_insert(steps), step_rows)
    return [
        (
            _view(job_id, now, submission),
            Changed(
                job_id,
                (submission.request.steps[0].kind,) * (lane_ids[submission.places[0]] in notified),
            ),
        )
        for job_id, submission in added
    ]


def _stored(spec: StepSpec) -> str:
    """Return the step as stored; raise UserError if a claim could not read it back."""
    text = spec.model_dump_json()
    try:
        same = views.SPEC.validate_json(text) == spec
    except ValidationError:
        same = False
    if not same:
        raise UserError(
            "unstorable_step", "the step cannot be stored unchanged, so it could not run"
        )
    return text


def _job_row(now: datetime, submission: Submission) -> dict[str, object]:
    return {
        "state": FIRST,
        "priority": submission.request.priority,
        "submitter": submission.submitter,
        "created_at": now,
        "updated_at": now,
        "idempotency_key": submission.key,
        "body_hash": submission.hash,
        "tags": json.dumps(submission.request.tags),
        "group_name": submission.request.group,
    }


def _group_rows(now: datetime, new: Sequence[Submission]) -> list[dict[str, object]]:
    named = {(s.submitter, s.request.group) for s in new if s.request.group is not None}
    return [
        {"submitter": submitter, "name": name, "created_at": now}
        for submitter, name in sorted(named)
    ]


def _step_rows(
    now: datetime,
    lane_ids: Mapping[capability_lanes.Place, int],
    turn: int,
    job_id: int,
    submission: Submission,
) -> list[dict[str, object]]:
    return [
        {
            "job_id": job_id,
            "number": number,
            "name": spec.name,
            "kind": spec.kind,
            "lane": lane_ids[place],
            "rank": submission.rank,
            "turn": 0 if number else turn,
            "state": State.PENDING if number else FIRST,
            "attempt": 0,
            "tries": 0,
            "queued_at": None if number else now,
            "not_before": None if number else now,
            "artifacts": "[]",
            "spec": text,
        }
        for number, (spec, text, place) in enumerate(
            zip(submission.request.steps, submission.specs, submission.places, strict=True)
        )
    ]


def _facet_rows(now: datetime, job_id: int, submission: Submission) -> list[dict[str, object]]:
    named = {f"kind:{spec.kind}" for spec in submission.request.steps}
    named |= {f"tag:{tag}" for tag in submission.request.tags}
    if submission.request.group is not None:
        named.add(f"group:{submission.request.group}")
    return [
        {"job_id": job_id, "facet": facet, "state": FIRST, "created_at": now}
        for facet in sorted(named)
    ]


def _event_rows(now: datetime, job_id: int, log: str) -> Iterator[dict[str, object]]:
    row = {"job_id": job_id, "step": 0, "attempt": 0, "at": now}
    state = {"state": FIRST, "job_state": FIRST, "attempt": 0}
    yield {**row, "kind": "state", "data": json.dumps(state)}
    if log:
        yield {**row, "kind": "log", "data": json.dumps({"text": log})}


def _view(job_id: int, now: datetime, submission: Submission) -> JobView:
    """Return the job as `JobStore.get` would read it."""
    # Reading it back instead halves the jobs that are accepted in a second (`bench dispatch`).
    views_of_steps = [
        StepView(
            number=number,
            name=spec.name,
            kind=spec.kind,
            state=State.PENDING if number else FIRST,
            attempt=0,
            worker=None,
            progress=None,
            result=None,
            failure=None,
            artifacts=[],
            queued_at=None if number else now,
            started_at=None,
            finished_at=None,
            spec=spec,
        )
        for number, spec in enumerate(submission.request.steps)
    ]
    outcome, reason = under_way(FIRST, views_of_steps)
    return JobView(
        id=job_id,
        state=FIRST,
        tags=submission.request.tags,
        priority=submission.request.priority,
        submitter=submission.submitter,
        group=submission.request.group,
        outcome=outcome,
        reason=reason,
        created_at=now,
        updated_at=now,
        steps=views_of_steps,
    )


def _hash(request: JobRequest) -> str:
    # Without a group, the hash is that of versions without groups: keys outlive an upgrade.
    new = {"group"} if request.group is None else set[str]()
    return sha256(request.model_dump_json(exclude=new).encode()).hexdigest()
