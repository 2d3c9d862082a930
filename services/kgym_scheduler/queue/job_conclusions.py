"""Conclusions of jobs (`bugs.conclusion`), computed and stored in the transaction that ends them.

If a result cannot be read, or is too long to be read again, the job is inconclusive; it ends
nevertheless.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import structlog
from pydantic import TypeAdapter
from sqlalchemy import Row, Select, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import JobView, StepView
from kgym.api.outcomes import Outcome
from kgym.api.patch_rows import PatchSummary
from kgym.api.states import State
from kgym.api.steps import Failure, StepKind, StepResult, StepSpec
from kgym.bugs.conclusion import Conclusion, conclusion
from kgym.bugs.patch_summary import summaries
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import steps
from kgym_scheduler.queue.job_change import JobChange, Step

# Maximum characters of a job's earlier results: reading them blocks the loop, some 10 ms a MiB.
LONGEST = 4 << 20
_TITLE = 1000
# Maximum characters of a job's words for searches: the names of a thousand patches are longer.
_WORDS = 20_000
# The columns of a job without a conclusion.
_LINES = ("title", "reason", "crash", "guilty_file")
NOTHING: dict[str, object] = dict.fromkeys(("outcome", "verdict", *_LINES, "patches", "words"))
# Maximum characters of a spec whose patches are measured.
_LONGEST_SPEC = 1 << 18
_SUMMARIES: TypeAdapter[list[PatchSummary]] = TypeAdapter(list[PatchSummary])

_log = structlog.get_logger()

# Kinds of steps that conclusions rest on.
_TELLING = (StepKind.BUILD, StepKind.CHECK, StepKind.REPRODUCE)
_s = steps.c
_SIZE = func.sum(func.length(_s.result)).over(partition_by=_s.job_id, order_by=_s.number)
_RESULTS: Select[Any] = (
    select(
        *(_s.job_id, _s.number, _s.name, _SIZE.label("size")),
        # A reproduce step's spec tells whether it tries the bug or a fix.
        case(
            ((_s.kind == StepKind.REPRODUCE) | (func.length(_s.spec) <= _LONGEST_SPEC), _s.spec)
        ).label("spec"),
        case((_SIZE <= LONGEST, _s.result)).label("result"),
    )
    .where(_s.job_id.in_(bindparam("jobs", expanding=True)), _s.kind.in_(_TELLING))
    .order_by(_s.job_id, _s.number)
)


async def conclude(
    connection: AsyncConnection, ended: Sequence[JobChange]
) -> dict[int, dict[str, object]]:
    """Return the columns of the conclusions of jobs that end now, by job."""
    telling = [
        job.id
        for job in ended
        if job.state is not State.ABORTED and any(step.kind in _TELLING for step in job.steps)
    ]
    stored = await _stored(connection, telling)
    return {job.id: _columns(job, stored[job.id]) for job in ended}


async def _stored(
    connection: AsyncConnection, job_ids: Sequence[int]
) -> Mapping[int, Mapping[int, Row[Any]]]:
    """Return the stored steps of these jobs, by job and number."""
    stored: defaultdict[int, dict[int, Row[Any]]] = defaultdict(dict)
    if job_ids:
        rows = await connection.execute(_RESULTS, {"jobs": list(job_ids)})
        for job_id, group in groupby(rows.all(), lambda row: row.job_id):
            stored[job_id] = {row.number: row for row in group}
    return stored


def _columns(job: JobChange, stored: Mapping[int, Row[Any]]) -> dict[str, object]:
    try:
        concluded, patches = _conclusion(job, stored)
    except Exception as error:  # noqa: BLE001 - whatever is in a result, the job ends
        _log.warning("a job has no conclusion", job=job.id, error=repr(error)[:1000])
        if job.state is State.SUCCEEDED:
            reason = _line(f"its results cannot be read: {error}")
            return {**NOTHING, "outcome": Outcome.INCONCLUSIVE, "reason": reason}
        for step in job.steps:
            step.answer = None
        concluded, patches = _conclusion(job, {})
    lines = {name: _line(getattr(concluded, name)) for name in _LINES}
    # Names and reasons are untrusted text, too.
    safe = [
        patch.model_copy(update={"patch": _line(patch.patch), "reason": _line(patch.reason)})
        for patch in patches
    ]
    listed = _SUMMARIES.dump_json(safe, exclude_defaults=True).decode() if safe else None
    words = " ".join([*concluded.stack, *(patch.patch or "" for patch in patches)])
    return {
        "outcome": concluded.outcome,
        "verdict": concluded.verdict,
        **lines,
        "patches": listed,
        "words": _line(words, _WORDS) or None,
    }


def _conclusion(
    job: JobChange, stored: Mapping[int, Row[Any]]
) -> tuple[Conclusion, list[PatchSummary]]:
    parts = [_view(step, stored.get(step.number)) for step in job.steps]
    fields: dict[str, Any] = {"id": job.id, "state": job.state, "steps": parts}
    ended = JobView.model_construct(**fields)
    concluded = conclusion(ended)
    return concluded, summaries(ended, concluded)


def _view(step: Step, stored: Row[Any] | None) -> StepView:
    spec: StepSpec | Failure | None = None
    result: StepResult | Failure | None = step.answer
    if stored is not None:
        if (stored.size or 0) > LONGEST:
            raise ValueError("the results are too long to be read again")
        spec = views.spec_of(stored.spec) if stored.spec else None
        if result is None and stored.result and step.state is State.SUCCEEDED:
            result = views.result_of(stored.result)
    for part in (spec, result):
        if isinstance(part, Failure):
            raise ValueError(part.message)
    failure = step.values.get("failure")
    fields: dict[str, Any] = {
        "number": step.number,
        "name": None if stored is None else stored.name,
        "kind": step.kind,
        "state": step.state,
        "spec": spec,
        "result": result,
        "failure": views.read(Failure, failure if isinstance(failure, str) else None),
    }
    return StepView.model_construct(**fields)


def _line(text: str | None, most: int = _TITLE) -> str | None:
    """Return the text as one line, without characters that a database refuses (NUL, surrogates)."""
    if text is None:
        return None
    return "".join(c if c.isprintable() else " " for c in text[:most])
