"""What jobs came to, told once, when they end: what `bugs.conclusion` makes of their steps.

Only jobs are looked at whose end says more than that all was done. What of a result cannot be
read, or is too long to be read again, leaves its job without a verdict; it stops no ending.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import structlog
from sqlalchemy import Row, Select, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import Failure, StepKind, StepResult, StepSpec
from kgym.bugs.conclusion import Conclusion, conclusion
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import steps

# Kinds of steps that come to a verdict.
JUDGED = frozenset({StepKind.REPRODUCE, StepKind.CHECK})
# Characters of a job's earlier results: to read them holds up the loop, 10 ms or so each MiB.
LONGEST = 4 << 20
_TITLE = 1000
# What is stored of a job that has not ended, or has only done what it was to do.
NOTHING: dict[str, object] = dict.fromkeys(
    ("verdict", "resolved", "title", "reason", "crash", "guilty_file")
)

_log = structlog.get_logger()

_s = steps.c
_SIZE = func.sum(func.length(_s.result)).over(partition_by=_s.job_id, order_by=_s.number)
_RESULTS: Select[Any] = (
    select(
        *(_s.job_id, _s.number, _s.name, _SIZE.label("size")),
        case((_s.kind == StepKind.REPRODUCE, _s.spec)).label("spec"),
        case((_SIZE <= LONGEST, _s.result)).label("result"),
    )
    .where(
        _s.job_id.in_(bindparam("jobs", expanding=True)),
        _s.kind.in_([*sorted(JUDGED), StepKind.BUILD]),
    )
    .order_by(_s.job_id, _s.number)
)


@dataclass(frozen=True, slots=True)
class EndedStep:
    """A step of a job that ends now."""

    number: int
    kind: StepKind
    state: State
    answer: StepResult | None
    """Of the step that has ended the job, if it has a result."""
    failure: str | None
    """Of the step that has ended the job, if it has failed: as it is stored."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ends now, with its steps in order."""

    id: int
    state: State
    steps: Sequence[EndedStep]

    @property
    def judged(self) -> bool:
        """Whether its end says more than that all was done."""
        return self.state is not State.SUCCEEDED or any(one.kind in JUDGED for one in self.steps)

    @property
    def rests_on_stored(self) -> bool:
        """Whether what it came to cannot be told from the last answer alone."""
        return self.state is not State.ABORTED and any(map(_rests_on_stored, self.steps))


def _rests_on_stored(step: EndedStep) -> bool:
    answered = step.answer is not None
    if step.kind is StepKind.REPRODUCE:  # its spec says whether a bug was to show, or a fix
        return answered or step.state is State.SUCCEEDED
    return step.kind is StepKind.CHECK and step.state is State.SUCCEEDED and not answered


async def conclude(
    connection: AsyncConnection, ended: Sequence[EndedJob]
) -> dict[int, dict[str, object]]:
    """Return, by job, the columns that tell what it came to; none for those with no more to say."""
    judged = [job for job in ended if job.judged]
    stored = await _stored(connection, [job.id for job in judged if job.rests_on_stored])
    return {job.id: _columns(job, stored[job.id]) for job in judged}


async def _stored(
    connection: AsyncConnection, job_ids: Sequence[int]
) -> Mapping[int, Mapping[int, Row[Any]]]:
    """Return what is stored of the steps of these jobs, by job and number."""
    found: defaultdict[int, dict[int, Row[Any]]] = defaultdict(dict)
    if job_ids:
        rows = await connection.execute(_RESULTS, {"jobs": list(job_ids)})
        for job_id, group in groupby(rows.all(), lambda row: row.job_id):
            found[job_id] = {row.number: row for row in group}
    return found


def _columns(job: EndedJob, stored: Mapping[int, Row[Any]]) -> dict[str, object]:
    try:
        came_to = _conclusion(job, stored)
    except Exception as error:  # noqa: BLE001 - whatever a result does, its job has ended
        _log.warning("what a job came to cannot be told", job=job.id, error=repr(error)[:1000])
        if job.state is State.SUCCEEDED:
            return {**NOTHING, "reason": _line(f"what it came to cannot be told: {error}")}
        unanswered = [replace(step, answer=None) for step in job.steps]
        came_to = _conclusion(replace(job, steps=unanswered), {})
    return {
        "verdict": came_to.verdict,
        "resolved": came_to.resolved,
        "title": _line(came_to.title),
        "reason": _line(came_to.reason),
        "crash": _line(came_to.crash),
        "guilty_file": _line(came_to.guilty_file),
    }


def _conclusion(job: EndedJob, stored: Mapping[int, Row[Any]]) -> Conclusion:
    parts = [_view(step, stored.get(step.number)) for step in job.steps]
    looked_at: dict[str, Any] = {"id": job.id, "state": job.state, "steps": parts}
    return conclusion(JobView.model_construct(**looked_at))


def _view(step: EndedStep, stored: Row[Any] | None) -> StepView:
    spec: StepSpec | Failure | None = None
    result: StepResult | Failure | None = step.answer
    if stored is not None:
        if (stored.size or 0) > LONGEST:
            raise ValueError("the results are too long to be read again")
        spec = views.spec_of(stored.spec) if stored.spec else None
        if result is None and stored.result and step.state is State.SUCCEEDED:
            result = views.result_of(stored.result)
    for one in (spec, result):
        if isinstance(one, Failure):
            raise ValueError(one.message)
    looked_at: dict[str, Any] = {
        "number": step.number,
        "name": None if stored is None else stored.name,
        "kind": step.kind,
        "state": step.state,
        "spec": spec,
        "result": result,
        "failure": views.read(Failure, step.failure),
    }
    return StepView.model_construct(**looked_at)


def _line(text: str | None) -> str | None:
    """Return the text as one line that every database takes: without NUL or lone surrogates."""
    if text is None:
        return None
    return "".join(c if c.isprintable() else " " for c in text[:_TITLE])
