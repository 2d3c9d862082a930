"""Database rows as the models of the REST interface; pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from sqlalchemy import Row

from kgym.api.changes import Change
from kgym.api.jobs import Artifact, JobEvent, JobView, PastOutcome, Progress, StepView
from kgym.api.outcomes import UNDER_WAY, Outcome
from kgym.api.states import State
from kgym.api.steps import Failure, StepResult, StepSpec
from kgym.bugs.conclusion import under_way

ARTIFACTS: TypeAdapter[list[Artifact]] = TypeAdapter(list[Artifact])
RESULT: TypeAdapter[StepResult] = TypeAdapter(StepResult)
SPEC: TypeAdapter[StepSpec] = TypeAdapter(StepSpec)
_Model = TypeVar("_Model", bound=BaseModel)
_KERNEL_RELEASE = re.compile(r'(?<!\\)"kernel_release": ?"([^"\\]{1,200})"')
# Columns of a job, and of a step, that their views have as they are.
_JOB_AS_STORED = ("id", "priority", "submitter", "title", "created_at", "updated_at")
_AS_STORED = (
    *("number", "name", "kind", "state", "attempt", "worker"),
    *("artifacts_gone_at", "queued_at", "started_at", "finished_at"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job_view(job: Row[Any], steps: Sequence[Row[Any]], reasons: Mapping[int, str]) -> JobView:
    """Return the job; `reasons` tell by lane why queued steps cannot begin."""
    state = State(job.state)
    own = [_step_view(step, reasons) for step in steps]
    outcome, reason = outcome_of(job), job.reason
    if not state.final:
        outcome, reason = under_way(state, own)
    return JobView(
        **{name: getattr(job, name) for name in _JOB_AS_STORED},
        state=state,
        tags=json.loads(job.tags),
        group=job.group_name,
        outcome=outcome,
        reason=reason,
        verdict=job.verdict,
        kernel=next(filter(None, map(_kernel_release, steps)), None),
        last_event=getattr(job, "last_event", None),
        steps=own,
    )


def past_outcomes(ends: Iterable[Row[Any]]) -> list[PastOutcome]:
    """Return a job's past outcomes, oldest first, from events given newest first."""
    return [
        PastOutcome(at=end.at, outcome=data["outcome"], reason=data["reason"])
        for end in reversed(list(ends))
        if "outcome" in (data := json.loads(end.data))
    ]


def _kernel_release(step: Row[Any]) -> str | None:
    """Return the kernel's version from the head of a step's result, if it is there."""
    # Matched, not parsed: the head is truncated JSON. Within JSON strings, quotes are escaped.
    match = _KERNEL_RELEASE.search(step.result_head or "")
    return match and match[1]


def outcome_of(row: Row[Any]) -> Outcome:
    """Return the outcome of a job or of many, from its state and the outcome stored at its end."""
    if row.outcome is not None:
        return Outcome(row.outcome)
    return UNDER_WAY.get(State(row.state), Outcome.INCONCLUSIVE)


def job_views(
    jobs: Iterable[Row[Any]], steps: Iterable[Row[Any]], reasons: Mapping[int, str]
) -> list[JobView]:
    """Return the jobs in the given order; `steps` are sorted by job and number."""
    by_job = {job: list(rows) for job, rows in groupby(steps, lambda step: step.job_id)}
    return [job_view(job, by_job[job.id], reasons) for job in jobs]


def spec_of(text: str) -> StepSpec | Failure:
    """Return a stored spec, or a Failure if another version wrote it and it cannot be read."""
    try:
        return SPEC.validate_json(text)
    except ValidationError as error:
        what = "what is stored of the step cannot be read, so no worker can run it; submit the job"
        return _unreadable("unreadable_step", f"{what} anew", error)


def result_of(text: str) -> StepResult | Failure:
    """Return a stored result, or a Failure if it cannot be read."""
    try:
        return RESULT.validate_json(text)
    except ValidationError as error:
        what = "the stored result cannot be read; restart the job from this step"
        return _unreadable("unreadable_result", what, error)


def artifacts_of(text: str) -> list[Artifact]:
    """Return a step's artifacts, none if they cannot be read."""
    try:
        return ARTIFACTS.validate_json(text)
    except ValidationError:
        return []


def _unreadable(reason: str, what: str, error: ValidationError) -> Failure:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"[:1000]
    return Failure(cause="infrastructure", reason=reason, message=f"{what} ({where})")


def read(model: type[_Model], text: str | None) -> _Model | None:
    """Return the stored model; None if there is none, or it cannot be read."""
    try:
        return model.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _step_view(step: Row[Any], reasons: Mapping[int, str]) -> StepView:
    """Return the step; without spec, result or artifacts if the row has none.

    Parts that cannot be read are null, and `failure` says why: they must not break a list.
    """
    # By attributes: a dict of each row took a third of the time of these views.
    spec = spec_of(step.spec) if step.spec else None
    result = result_of(step.result) if step.result else None
    unread = next((part for part in (spec, result) if isinstance(part, Failure)), None)
    return StepView(
        **{name: getattr(step, name) for name in _AS_STORED},
        progress=read(Progress, step.progress),
        result=None if isinstance(result, Failure) else result,
        failure=read(Failure, step.failure) or unread,
        waiting=reasons.get(step.lane) if step.state == State.QUEUED else None,
        artifacts=artifacts_of(step.artifacts) if step.artifacts else [],
        spec=None if isinstance(spec, Failure) else spec,
    )


def job_event(event: Row[Any]) -> JobEvent:
    """Return a row of `events` as an event for the job's followers."""
    return JobEvent(id=event.id, **_event(event))


def change(event: Row[Any]) -> Change:
    """Return a row of `events` as a change in the feed of all jobs."""
    return Change(cursor=str(event.id), **_event(event))


def _event(row: Row[Any]) -> dict[str, Any]:
    shared = {name: row._mapping[name] for name in ("step", "kind", "at")}
    return {**shared, "job": row.job_id, "data": json.loads(row.data)}


def cursor(job: Row[Any]) -> str:
    """Return the cursor of the page that begins after this job."""
    return cursor_at(job.created_at, job.id)


def cursor_at(moment: datetime, number: int) -> str:
    """Return the cursor of the page that begins after this time and number."""
    return f"{(moment - _EPOCH) // timedelta(microseconds=1)}-{number}"


def position(text: str) -> tuple[datetime, int]:
    """Return the time and id in a cursor."""
    microseconds, job_id = text.split("-")
    return _EPOCH + timedelta(microseconds=int(microseconds)), int(job_id)
