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
from kgym_scheduler.database.tables import LOCAL, events, facets, groups, jobs, steps
from kgym_scheduler.queue import capability_lanes, step_inputs
from kgym_scheduler.queue.bulk_statement import Guard
from kgym_scheduler.queue.bulk_write import NOTIFY_BELOW, BulkWrite
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
    specs: tuple[str, ...] = field(init=False)
    """The steps as they are stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", tuple(map(_stored, self.request.steps)))

    @property
    def own(self) -> "_Key | None":
        """The key as it is known: two submitters' are never the same."""
        return (self.submitter, self.key) if self.key else None


Added = tuple[JobView, Changed] | int
"""The job as it was added, or the id of the one that its key was used for."""
_Key = tuple[str, str]
"""A submitter's own: its name, and the idempotency key."""
_Known = dict[_Key, tuple[int, str]]
"""Job and hash of the request."""


async def add(
    connection: Connection,
    now: datetime,
    wanted: Sequence[Submission],
    known_lanes: dict[capability_lanes.Place, int],
) -> list[Added | Exception]:
    """Insert the jobs, with their first steps queued; answer each, or say what is wrong with it.

    Given `Singles`, raises InfrastructureError `change_raced` where a key is known.
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
    for (number, one), added in zip(
        new.items(), await _insert(connection, now, list(new.values()), known_lanes), strict=True
    ):
        answers[number] = added
        if one.own:
            known[one.own] = added[0].id, _hash(one.request)
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
    if body_hash == _hash(one.request):
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
    places = {capability_lanes.place(spec) for one in new for spec in one.request.steps}
    lane_ids = await capability_lanes.numbers(connection, places, known_lanes)
    plan = BulkWrite(connection, _unknown(new) if isinstance(connection, Singles) else None)
    plan.add_jobs([_job_row(now, one) for one in new])
    parts = list(enumerate(new, 1))
    plan.add_once(groups, _group_rows(now, new))
    plan.add(steps, [row for part in parts for row in _step_rows(now, lane_ids, plan, *part)])
    plan.add(facets, [row for part in parts for row in _facet_rows(now, *part)])
    plan.add(events, [_event_row(now, number) for number, _ in parts])
    plan.count_waiting({lane_ids[capability_lanes.place(_first(one))] for one in new})
    await plan.run()
    notified = {lane for lane, waiting in plan.waiting.items() if waiting < NOTIFY_BELOW}
    return [
        (
            _view(job_id, now, one),
            Changed(
                job_id,
                (_first(one).kind,)
                if lane_ids[capability_lanes.place(_first(one))] in notified
                else (),
            ),
        )
        for job_id, one in zip(plan.job_ids, new, strict=True)
    ]


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
        "body_hash": _hash(one.request) if one.key else None,
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
    plan: BulkWrite,
    new_job: int,
    one: Submission,
) -> list[dict[str, object]]:
    rank = -one.request.priority
    turn = plan.turn((one.submitter, str(_first(one).kind), rank))
    return [
        {
            "new_job": new_job,
            "number": number,
            "name": spec.name,
            "kind": spec.kind,
            "lane": lane_ids[capability_lanes.place(spec)],
            "rank": rank,
            **({"queue": None, "turn": 0} if number else turn),
            "state": State.PENDING if number else FIRST,
            "attempt": 0,
            "tries": 0,
            "queued_at": None if number else now,
            "not_before": None if number else now,
            "artifacts": "[]",
            "spec": text,
        }
        for number, (spec, text) in enumerate(zip(one.request.steps, one.specs, strict=True))
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


def _view(job_id: int, now: datetime, one: Submission) -> JobView:
    """Return the job as it has just been added: what `JobStore.get` would read."""
    return JobView(
        id=job_id,
        state=FIRST,
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
            for number, spec in enumerate(one.request.steps)
        ],
    )


def _hash(request: JobRequest) -> str:
    # Without a group it is what it was before there were any: keys outlive an upgrade.
    new = {"group"} if request.group is None else set[str]()
    return sha256(request.model_dump_json(exclude=new).encode()).hexdigest()
