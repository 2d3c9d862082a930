"""What attempts say while they run: log and progress; each word extends the lease."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ARRAY, Row, Uuid, any_, bindparam, select

from kgym.api.jobs import Progress
from kgym.api.states import State
from kgym_scheduler.database.single_statements import Connection, Singles
from kgym_scheduler.database.tables import attempts, events, steps
from kgym_scheduler.queue.bulk_statement import Guard
from kgym_scheduler.queue.bulk_write import BulkWrite
from kgym_scheduler.queue.job_changes import Changed, lock

FRESH = 0.9
"""Part of a lease's time that has to be left for a report without news to write nothing."""


LOG = 64 << 20
"""Characters that are kept of the log of an attempt; all of it is in its artifact `step.log`."""
_LEASES = 10_000


class LogVolume:
    """Bounds the log that attempts fill the database with, each scheduler what passes through it.

    What is forgotten of many attempts at once, is that of those who have been quiet longest.
    """

    def __init__(self) -> None:
        self._logged: dict[uuid.UUID, int] = {}

    def cut(self, lease: uuid.UUID, log: str) -> str:
        """Return of this piece what is still to be kept."""
        logged = self._logged.pop(lease, 0)
        self._logged[lease] = logged + len(log)
        if len(self._logged) > _LEASES:
            del self._logged[next(iter(self._logged))]
        if logged + len(log) <= LOG:
            return log
        note = f"\n(the rest of over {LOG >> 20} Mi characters is in the artifact step.log)\n"
        return log[: LOG - logged] + note if logged <= LOG else ""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """What a worker says about an attempt that runs: new lines of its log, and its progress."""

    lease: uuid.UUID
    log: str = ""
    progress: Progress | None = None


_HELD = (
    select(
        *(steps.c.id, steps.c.job_id, steps.c.number, steps.c.attempt),
        *(steps.c.lease, steps.c.lease_until),
    )
    .join(attempts, attempts.c.step_id == steps.c.id)
    .where(steps.c.lease == attempts.c.lease)
)
_HELD_LIST = _HELD.where(attempts.c.lease.in_(bindparam("leases", expanding=True)))
_HELD_ARRAY = _HELD.where(attempts.c.lease == any_(bindparam("leases", type_=ARRAY(Uuid))))
_RUN = """
SELECT count(*) = cardinality(CAST(:leases AS uuid[])) FROM (
    SELECT FROM jobs JOIN steps ON steps.job_id = jobs.id
    WHERE steps.id = ANY(CAST(:steps AS bigint[])) AND steps.state = 'running'
        AND steps.lease = ANY(CAST(:leases AS uuid[]))
    ORDER BY jobs.id FOR NO KEY UPDATE OF jobs, steps) AS held
"""


async def keep(
    connection: Connection, now: datetime, lease: timedelta, reports: Sequence[AttemptReport]
) -> list[Changed | None]:
    """Extend the leases and keep what is new; None for one that is stale."""
    leases = [report.lease for report in reports]
    held = await _held(connection, leases)
    if any(_news(report, held.get(report.lease), now + FRESH * lease) for report in reports):
        guard = None
        if isinstance(connection, Singles):
            guard = Guard(_RUN, {"leases": list(held), "steps": [one.id for one in held.values()]})
        else:
            await lock(connection, {step.job_id for step in held.values()})
            held = await _held(connection, leases)
        told = [report for report in reports if report.lease in held]
        plan = BulkWrite(connection, guard)
        _extend(plan, now + lease, told, held)
        _tell(plan, now, told, held)
        await plan.run()
    answers: list[Changed | None] = []
    for report in reports:
        step = held.get(report.lease)
        answers.append(Changed(step.job_id) if step else None)
    return answers


def _news(report: AttemptReport, step: Row[*tuple[Any, ...]] | None, fresh_until: datetime) -> bool:
    return step is not None and bool(
        report.log or report.progress or step.lease_until < fresh_until
    )


async def _held(
    connection: Connection, leases: Sequence[uuid.UUID]
) -> dict[uuid.UUID, Row[*tuple[Any, ...]]]:
    """Return the steps that run under these leases."""
    query = _HELD_ARRAY if isinstance(connection, Singles) else _HELD_LIST
    rows = await connection.execute(query, {"leases": list(leases)})
    return {row.lease: row for row in rows.all()}


def _extend(
    plan: BulkWrite,
    until: datetime,
    reports: Sequence[AttemptReport],
    held: dict[uuid.UUID, Row[*tuple[Any, ...]]],
) -> None:
    latest = {report.lease: report.progress for report in reports if report.progress}
    for quiet in (True, False):
        rows: list[tuple[Mapping[str, object], Mapping[str, object]]] = []
        for lease in sorted({r.lease for r in reports if (r.lease not in latest) is quiet}):
            values = {} if quiet else {"progress": latest[lease].model_dump_json()}
            key = {"id": held[lease].id, "state": State.RUNNING, "lease": lease}
            rows.append((key, {"lease_until": until, **values}))
        plan.change(steps, rows)


def _tell(
    plan: BulkWrite,
    now: datetime,
    reports: Sequence[AttemptReport],
    held: dict[uuid.UUID, Row[*tuple[Any, ...]]],
) -> None:
    # The latest word counts: a late reader gets one, not thousands.
    latest = {report.lease: report for report in reports if report.progress}
    plan.forget_progress([(held[lease].job_id, held[lease].number) for lease in latest])
    rows = []
    for report in reports:
        step = held[report.lease]
        if report.log:
            rows.append(_event(step, now, "log", {"text": report.log}))
        if report.progress and latest[report.lease] is report:
            rows.append(_event(step, now, "progress", report.progress.model_dump()))
    plan.add(events, rows)
    plan.tell(sorted({row["job_id"] for row in rows}))


def _event(
    step: Row[*tuple[Any, ...]], now: datetime, kind: str, fields: dict[str, object]
) -> dict[str, Any]:
    return {
        "job_id": step.job_id,
        "step": step.number,
        "attempt": step.attempt,
        "kind": kind,
        "at": now,
        "data": json.dumps({"attempt": step.attempt, **fields}),
    }
