"""Adding jobs, once for each idempotency key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from pydantic import ValidationError
from sqlalchemy import bindparam, select, tuple_

from kgym.api.jobs import JobRequest, JobView, StepView
from kgym.api.states import Event, State, after
from kgym.api.steps import StepSpec
from kgym.errors import UserError
from kgym_scheduler.database import views
from kgym_scheduler.database.single_statements import Connection, Singles
from kgym_scheduler.database.tables import LOCAL, attempts, events, facets, groups, jobs, steps
from kgym_scheduler.queue import capability_lanes, fair_queue, step_inputs
from kgym_scheduler.queue.bulk_statement import Guard
from kgym_scheduler.queue.bulk_write import NOTIFY_BELOW, BulkWrite
from kgym_scheduler.queue.handed_steps import HANDED, NOBODY_WAITS, HandedJob, Handing, Room
from kgym_scheduler.queue.job_changes import Changed

FIRST = after(State.PENDING, Event.ENQUEUE)
_KEYS = select(jobs.c.id, jobs.c.submitter, jobs.c.idempotency_key, jobs.c.body_hash).where(
    tuple_(jobs.c.submitter, jobs.c.idempotency_key).in_(bindparam("keys", expanding=True))
)
_UNKNOWN = """
SELECT count(*) = 0 FROM jobs
JOIN unnest(CAST(:submitters AS varchar[]), CAST(:keys AS varchar[])) AS given(submitter, key)
    ON jobs.submitter = given.submitter AND jobs.idempotency_key = given.key
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to add: whose, and under which idempotency key."""

    request: JobRequest
    key: str | None = None
    submitter: str = LOCAL
    room: Room | None = None
    """Where its first step may begin at once."""
    specs: tuple[str, ...] = field(init=False)
    """The steps as they are stored."""
    places: tuple[capability_lanes.Place, ...] = field(init=False)
    """Where each of them waits, once it is its turn."""
    hash: str | None = field(init=False)
    """Of the request, where it has a key."""

    def __post_init__(self) -> None:
        steps = self.request.steps
        object.__setattr__(self, "specs", tuple(map(_stored, steps)))
        object.__setattr__(self, "places", tuple(map(capability_lanes.place, steps)))
        object.__setattr__(self, "hash", _hash(self.request) if self.key else None)

    @property
    def own(self) -> "_Key | None":
        """The key as it is known: two submitters' are never the same."""
        return (self.submitter, self.key) if self.key else None

    @property
    def rank(self) -> int:
        """The rank of its steps."""
        return -self.request.priority

    @property
    def queue(self) -> fair_queue.Queue:
        """Where its first step waits for its turn."""
        return self.submitter, str(_first(self).kind), self.rank

    @property
    def begins(self) -> Room | None:
        """Where its first step may begin at once, if it can be sent there as it is."""
        return self.room if len(self.specs[0]) <= HANDED and not _first(self).inputs() else None


Added = tuple[JobView, Changed] | int
"""The job as it was added, or the id of the one that its key was used for."""
_Key = tuple[str, str]
"""A submitter's own: its name, and the idempotency key."""
_Known = dict[_Key, tuple[int, str | None]]
"""Job and hash of the request."""


async def add(
    connection: Connection,
    now: datetime,
    wanted: Sequence[Submission],
    known_lanes: dict[capability_lanes.Place, int],
    handing: Handing | None = None,
) -> list[Added | Exception]:
    """Insert the jobs, with their first steps queued; answer each, or say what is wrong with it.

    With `handing`, the first step of a job that comes alone begins at once if there is room for
    it. Given `Singles`, raises InfrastructureError `change_raced` where a key is known, or a step
    waits that could begin instead.
    """
    known: _Known = {}
    if not isinstance(connection, Singles):
        known = await _known(connection, [one.own for one in wanted if one.own])
    answers: dict[int, Added | Exception] = {}
    new: dict[int, Submission] = {}
    begun: set[_Key] = set()
    for number, one in enumerate(wanted):
        again = one.own in known or one.own in begun
        try:
            if not again:
                await step_inputs.check(connection, one.request.steps)
                new[number] = one
                begun |= {one.own} if one.own else set()
        except UserError as error:
            answers[number] = error
    jobs = list(new.values())
    if handing and isinstance(connection, Singles) and len(jobs) == 1 and jobs[0].begins:
        begins = jobs[0].begins
        inserted = [await _insert_begun(connection, now, jobs[0], begins, known_lanes, handing)]
    else:
        inserted = await _insert(connection, now, jobs, known_lanes)
    for (number, one), added in zip(new.items(), inserted, strict=True):
        answers[number] = added
        if one.own:
            known[one.own] = added[0].id, one.hash
    return [
        answers[number] if number in answers else _repeated(one, known)
        for number, one in enumerate(wanted)
    ]


async def _known(connection: Connection, keys: Sequence[_Key]) -> _Known:
    if not keys:
        return {}
    found = await connection.execute(_KEYS, {"keys": list(keys)})
    return {(row.submitter, row.idempotency_key): (row.id, row.body_hash) for row in found.all()}


def _repeated(one: Submission, known: _Known) -> int | UserError:
    job_id, body_hash = known[one.submitter, one.key or ""]
    if body_hash == one.hash:
        return job_id
    return UserError(
        "key_reused",
        f"the idempotency key {one.key!r} was used for job {job_id}, which is another request; "
        "use a new key for a new job",
        job=job_id,
    )


async def _insert(
    connection: Connection,
    now: datetime,
    new: Sequence[Submission],
    known_lanes: dict[capability_lanes.Place, int],
) -> list[tuple[JobView, Changed]]:
    if not new:
        return []
    places = {place for one in new for place in one.places}
    lane_ids = await capability_lanes.numbers(connection, places, known_lanes)
    plan = BulkWrite(connection, _unknown(new) if isinstance(connection, Singles) else None)
    plan.add_jobs([_job_row(now, one) for one in new])
    parts = list(enumerate(new, 1))
    plan.add_once(groups, _group_rows(now, new))
    plan.add(
        steps,
        [
            row
            for number, one in parts
            for row in _step_rows(now, lane_ids, plan.turn(one.queue), number, one)
        ],
    )
    plan.add(facets, [row for part in parts for row in _facet_rows(now, *part)])
    plan.add(events, [_event_row(now, number) for number, _ in parts])
    plan.count_waiting({lane_ids[one.places[0]] for one in new})
    await plan.run()
    notified = {lane for lane, waiting in plan.waiting.items() if waiting < NOTIFY_BELOW}
    return [
        (
            _view(job_id, now, one),
            Changed(
                job_id,
                (_first(one).kind,) if lane_ids[one.places[0]] in notified else (),
            ),
        )
        for job_id, one in zip(plan.job_ids, new, strict=True)
    ]


async def _insert_begun(
    connection: Singles,
    now: datetime,
    one: Submission,
    room: Room,
    known_lanes: dict[capability_lanes.Place, int],
    handing: Handing,
) -> tuple[JobView, Changed]:
    """Insert a job whose first step begins at once."""
    lane_ids = await capability_lanes.numbers(connection, one.places, known_lanes)
    lanes = [lane_ids[place] for place in one.places]
    until = now + handing.lease
    job = HandedJob(now, until, room, one.submitter, one.request.steps, lanes, one.rank)
    unknown = _unknown([one])
    query = f"({unknown.query}) AND {NOBODY_WAITS}"
    values = {**unknown.values, "lane": lanes[0], "now": now}
    plan = BulkWrite(connection, Guard(f"SELECT {query}", values))
    begun = job.steps(_step_rows(now, lane_ids, {"turn": 0}, 1, one))
    plan.add_jobs([_job_row(now, one) | {"state": job.state}], begun)
    plan.add_once(groups, _group_rows(now, [one]))
    plan.add(facets, [row | {"state": job.state} for row in _facet_rows(now, 1, one)])
    plan.add(events, [_event_row(now, 1), *job.events()])
    plan.add(attempts, job.attempts())
    plan.tell_version()
    await plan.run()
    change = job.written(plan.job_ids[0], plan.step_ids, plan.version)
    handing.claimed.remember([change])
    return _view(change.id, now, one, room), Changed(change.id, handed=job.assignment())


def _unknown(new: Sequence[Submission]) -> Guard:
    """Return what holds while none of the keys was used."""
    submitters, keys = zip(*([one.own for one in new if one.own] or [("", "")]), strict=True)
    return Guard(_UNKNOWN, {"submitters": submitters, "keys": keys})


def _stored(spec: StepSpec) -> str:
    """Return the step as it is stored, from which a claim will read the same; else UserError."""
    text = spec.model_dump_json()
    try:
        same = views.SPEC.validate_json(text) == spec
    except ValidationError:
        same = False
    if not same:
        raise UserError("unstorable_step", "the step cannot be stored as it is, so none would run")
    return text


def _first(one: Submission) -> StepSpec:
    return one.request.steps[0]


def _job_row(now: datetime, one: Submission) -> dict[str, object]:
    return {
        "state": FIRST,
        "priority": one.request.priority,
        "submitter": one.submitter,
        "created_at": now,
        "updated_at": now,
        "idempotency_key": one.key,
        "body_hash": one.hash,
        "tags": json.dumps(one.request.tags),
        "group_name": one.request.group,
    }


def _group_rows(now: datetime, new: Sequence[Submission]) -> list[dict[str, object]]:
    named = {(one.submitter, one.request.group) for one in new if one.request.group is not None}
    return [
        {"submitter": submitter, "name": name, "created_at": now}
        for submitter, name in sorted(named)
    ]


def _step_rows(
    now: datetime,
    lane_ids: Mapping[capability_lanes.Place, int],
    turn: Mapping[str, object],
    new_job: int,
    one: Submission,
) -> list[dict[str, object]]:
    return [
        {
            "new_job": new_job,
            "number": number,
            "name": spec.name,
            "kind": spec.kind,
            "lane": lane_ids[place],
            "rank": one.rank,
            **({**dict.fromkeys(turn), "turn": 0} if number else turn),
            "state": State.PENDING if number else FIRST,
            "attempt": 0,
            "tries": 0,
            "queued_at": None if number else now,
            "not_before": None if number else now,
            "artifacts": "[]",
            "spec": text,
        }
        for number, (spec, text, place) in enumerate(
            zip(one.request.steps, one.specs, one.places, strict=True)
        )
    ]


def _facet_rows(now: datetime, new_job: int, one: Submission) -> list[dict[str, object]]:
    named = {f"kind:{spec.kind}" for spec in one.request.steps}
    named |= {f"tag:{tag}" for tag in one.request.tags}
    if one.request.group is not None:
        named.add(f"group:{one.request.group}")
    return [
        {"new_job": new_job, "facet": facet, "state": FIRST, "created_at": now}
        for facet in sorted(named)
    ]


def _event_row(now: datetime, new_job: int) -> dict[str, object]:
    return {
        "new_job": new_job,
        "step": 0,
        "attempt": 0,
        "kind": "state",
        "at": now,
        "data": json.dumps({"state": FIRST, "job_state": FIRST, "attempt": 0}),
    }


def _view(job_id: int, now: datetime, one: Submission, room: Room | None = None) -> JobView:
    """Return the job as it has just been added: what `JobStore.get` would read.

    With `room`, its first step has begun there.
    """
    begun = room is not None
    first = State.RUNNING if begun else FIRST
    return JobView(
        id=job_id,
        state=first,
        tags=one.request.tags,
        priority=one.request.priority,
        submitter=one.submitter,
        group=one.request.group,
        created_at=now,
        updated_at=now,
        steps=[
            StepView(
                number=number,
                name=spec.name,
                kind=spec.kind,
                state=State.PENDING if number else first,
                attempt=1 if begun and number == 0 else 0,
                worker=room.worker if room and number == 0 else None,
                progress=None,
                result=None,
                failure=None,
                artifacts=[],
                queued_at=None if number else now,
                started_at=now if begun and number == 0 else None,
                finished_at=None,
                spec=spec,
            )
            for number, spec in enumerate(one.request.steps)
        ],
    )


def _hash(request: JobRequest) -> str:
    # Without a group it is what it was before there were any: keys outlive an upgrade.
    new = {"group"} if request.group is None else set[str]()
    return sha256(request.model_dump_json(exclude=new).encode()).hexdigest()
