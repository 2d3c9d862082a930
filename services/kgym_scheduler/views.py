"""Rows of the database as the models that others see; pure."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row

from kgym.jobs import Artifact, JobEvent, JobView, Progress, StepView
from kgym.states import State
from kgym.steps import Failure, StepKind, StepResult, StepSpec

ARTIFACTS: TypeAdapter[list[Artifact]] = TypeAdapter(list[Artifact])
RESULT: TypeAdapter[StepResult] = TypeAdapter(StepResult)
SPEC: TypeAdapter[StepSpec] = TypeAdapter(StepSpec)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job_view(job: Row[Any], steps: Iterable[Row[Any]], reasons: Mapping[int, str]) -> JobView:
    """Return the job with these steps, in order, and by lane why queued ones cannot begin."""
    return JobView(
        id=job.id,
        state=State(job.state),
        tags=json.loads(job.tags),
        priority=job.priority,
        submitter=job.submitter,
        created_at=job.created_at,
        updated_at=job.updated_at,
        steps=[_step_view(step, reasons) for step in steps],
    )


def job_views(
    jobs: Iterable[Row[Any]], steps: Iterable[Row[Any]], reasons: Mapping[int, str]
) -> list[JobView]:
    """Return jobs in the order given; `steps` are theirs, sorted by job and number."""
    by_job = {job: list(rows) for job, rows in groupby(steps, lambda step: step.job_id)}
    return [job_view(job, by_job[job.id], reasons) for job in jobs]


def _step_view(step: Row[Any], reasons: Mapping[int, str]) -> StepView:
    """Return the step; its spec only where the row has one."""
    spec = step._mapping.get("spec")
    return StepView(
        number=step.number,
        kind=StepKind(step.kind),
        state=State(step.state),
        attempt=step.attempt,
        worker=step.worker,
        progress=step.progress and Progress.model_validate_json(step.progress),
        result=step.result and RESULT.validate_json(step.result),
        failure=step.failure and Failure.model_validate_json(step.failure),
        waiting=reasons.get(step.lane) if step.state == State.QUEUED else None,
        artifacts=ARTIFACTS.validate_json(step.artifacts),
        artifacts_gone_at=step.artifacts_gone_at,
        queued_at=step.queued_at,
        started_at=step.started_at,
        finished_at=step.finished_at,
        spec=spec and SPEC.validate_json(spec),
    )


def job_event(event: Row[Any]) -> JobEvent:
    """Return the event."""
    return JobEvent(
        id=event.id,
        job=event.job_id,
        step=event.step,
        kind=event.kind,
        at=event.at,
        data=json.loads(event.data),
    )


def cursor(job: Row[Any]) -> str:
    """Return the cursor of the page that begins after this job."""
    return f"{(job.created_at - _EPOCH) // timedelta(microseconds=1)}-{job.id}"


def position(text: str) -> tuple[datetime, int]:
    """Return the creation time and id in a cursor."""
    microseconds, job_id = text.split("-")
    return _EPOCH + timedelta(microseconds=int(microseconds)), int(job_id)
