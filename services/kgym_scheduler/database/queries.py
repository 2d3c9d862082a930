"""The statements that only read; pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from kgym.api.steps import StepKind
from kgym.sqlite import Utc
from kgym_scheduler.database.tables import QUEUED, RUNNING, events, jobs, lanes, steps, workers

JOB_COLUMNS = [
    jobs.c[name]
    for name in (
        *("id", "state", "priority", "submitter", "group_name", "outcome", "verdict"),
        *("created_at", "updated_at", "tags", "title", "reason"),
    )
]
LAST_EVENT = (
    select(func.coalesce(func.max(events.c.id), 0))
    .where(events.c.job_id == jobs.c.id)
    .scalar_subquery()
    .label("last_event")
)
_INTERNAL = {"id", "rank", "turn", "tries", "lease", "lease_until", "not_before", "spec"}
STEP_COLUMNS = [column for column in steps.c if column.name not in _INTERNAL]
_LONG = {"result", "artifacts"}
# Lists show the kernel's version. It is near the start of a result, which may have megabytes.
_RESULT_HEAD = case(
    (steps.c.kind.in_([StepKind.BUILD, StepKind.CHECK]), func.substr(steps.c.result, 1, 2000))
).label("result_head")
_BRIEF = [null().label(c.name) if c.name in _LONG else c for c in STEP_COLUMNS]


def job(job_id: int) -> Select[Any]:
    """Return the job, with the number of its last event."""
    return select(*JOB_COLUMNS, LAST_EVENT).where(jobs.c.id == job_id)


def steps_of(job_ids: Iterable[int], *, specs: bool = False, brief: bool = False) -> Select[Any]:
    """Return the steps of these jobs by job and number; `brief`: without result and artifacts.

    Columns that are left out are null.
    """
    spec = steps.c.spec if specs else null().label("spec")
    return (
        select(*(_BRIEF if brief else STEP_COLUMNS), spec, _RESULT_HEAD)
        .where(steps.c.job_id.in_(list(job_ids)))
        .order_by(steps.c.job_id, steps.c.number)
    )


def events_after(job_id: int, last: int, limit: int) -> Select[Any]:
    """Return the job's events after number `last`, in order, at most `limit`."""
    # A job's followers get no event of new tags: these are in the feed of all jobs only.
    return (
        select(events)
        .where(events.c.job_id == job_id, events.c.id > last, events.c.kind != "tags")
        .order_by(events.c.id)
        .limit(limit)
    )


# Ends of a job that are read: anybody may restart one any number of times.
MOST_ENDS = 100


def end(job_id: int) -> Select[Any]:
    """Return the job's state and the number of its last event."""
    return select(jobs.c.state, LAST_EVENT).where(jobs.c.id == job_id)


def ends_of(job_id: int) -> Select[Any]:
    """Return the query for the last events with which the job may have ended, newest first."""
    # May match other events, too: details of a failure may have such a key.
    ended = events.c.data.contains('"outcome": "')
    query = select(events.c.at, events.c.data).where(events.c.job_id == job_id, ended)
    return query.where(events.c.kind == "state").order_by(events.c.id.desc()).limit(MOST_ENDS)


def last_events(job_ids: Iterable[int]) -> Select[Any]:
    """Return the ids of the jobs, each with the number of its last event."""
    return select(jobs.c.id, LAST_EVENT).where(jobs.c.id.in_(list(job_ids)))


def log_after(
    job_id: int, last: int, limit: int, step: int | None, attempt: int | None
) -> Select[Any]:
    """Return the job's next log events."""
    query = events_after(job_id, last, limit).where(events.c.kind == "log")
    if step is not None:
        query = query.where(events.c.step == step)
    if attempt is not None:
        query = query.where(events.c.attempt == attempt)
    return query


def _news() -> CompoundSelect[Any]:
    s, since, now = steps.c, bindparam("since", type_=Utc), bindparam("now", type_=Utc)
    pause_ended = and_(s.not_before > since, s.not_before <= now, s.not_before > s.queued_at)
    retried = select(s.kind).where(QUEUED, pause_ended).distinct().subquery()
    expired = select(s.kind).where(RUNNING, s.lease_until < now).limit(1).subquery()
    return union_all(
        select(literal_column("'draining'").label("what"), workers.c.id.label("which")).where(
            workers.c.draining
        ),
        select(literal_column("'retried'"), retried.c.kind),
        select(literal_column("'expired'"), expired.c.kind),
    )


# All that a sweep looks for, as pairs of words, in one statement: workers that drain; kinds of
# steps whose pause before a retry has ended between two times; whether any lease has expired.
NEWS = _news()


def expired(now: datetime, limit: int, worker: str | None) -> Select[Any]:
    """Return the expired leases, of one worker or of all."""
    query = (
        select(steps.c.lease)
        .where(RUNNING, steps.c.lease_until < now)
        .order_by(steps.c.lease_until)
        .limit(limit)
    )
    return query if worker is None else query.where(steps.c.worker == worker)


def waiting() -> Select[Any]:
    """Return the number of queued steps by kind, and since when the oldest waits."""
    # Grouped by lane first: so it reads only the index `ix_steps_queue`.
    counted = (
        select(
            steps.c.lane, func.count().label("steps"), func.min(steps.c.queued_at).label("since")
        )
        .where(QUEUED)
        .group_by(steps.c.lane)
        .subquery()
    )
    return (
        select(
            lanes.c.kind,
            func.sum(counted.c.steps).label("steps"),
            func.min(counted.c.since).label("since"),
        )
        .join(counted, counted.c.lane == lanes.c.id)
        .group_by(lanes.c.kind)
    )


def running() -> Select[Any]:
    """Return the running steps, with their workers and leases."""
    s = steps.c
    return select(
        s.job_id, s.number, s.kind, s.attempt, s.worker, s.started_at, s.lease_until
    ).where(RUNNING)
