"""The place of a queued step: how many steps come before it, and about when it begins."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ScalarSelect, Select, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import State
from kgym.api.worker_calls import WorkerInfo
from kgym_scheduler.database.tables import QUEUED, RUNNING, lanes, seconds_between, steps

# Maximum number of steps that are counted before it, so that a long queue costs no more.
MOST = 10_000
# Number of the newest steps; the successful ones of a kind among them give its mean duration.
_RECENT = 1000


async def of(
    connection: AsyncConnection, job_id: int, number: int, live: Sequence[WorkerInfo]
) -> dict[str, object]:
    """Return the place of a step among the queued ones of its kind, as fields of its `StepView`.

    It is an estimate: other submitters' later steps may come first, and workers may come and go.
    """
    s = steps.c
    own = await connection.execute(
        select(s.kind, s.rank, s.turn, s.id).where(s.job_id == job_id, s.number == number)
    )
    step = own.one()
    counted = select(
        _count(before(step.kind, (step.rank, step.turn, step.id))).label("ahead"),
        _count(select(s.id).where(RUNNING, s.kind == step.kind)).label("running"),
        _took(step.kind).label("took"),
    )
    row = (await connection.execute(counted)).one()
    slots = sum(worker.slots for worker in live if step.kind in worker.kinds)
    took = None if row.took is None else float(row.took)
    begins_in = _seconds(took, row.ahead, row.running, slots)
    return {"ahead": row.ahead, "begins_in": begins_in}


def before(kind: str, place: tuple[int, int, int]) -> Select[tuple[int]]:
    """Return the query for the queued steps of a kind before this rank, turn and id."""
    # By lane, as in the index that serves it.
    of_kind = select(lanes.c.id).where(lanes.c.kind == kind)
    order = tuple_(steps.c.rank, steps.c.turn, steps.c.id)
    return select(steps.c.id).where(QUEUED, steps.c.lane.in_(of_kind), order < tuple_(*place))


def _count(query: Select[tuple[int]]) -> ScalarSelect[int]:
    return select(func.count()).select_from(query.limit(MOST).subquery()).scalar_subquery()


def _took(kind: str) -> ScalarSelect[Any]:
    """Return the mean seconds of recent steps of a kind; NULL if none has succeeded."""
    s = steps.c
    newest = select(func.max(s.id)).scalar_subquery()
    recent = s.id > newest - _RECENT, s.kind == kind, s.state == State.SUCCEEDED
    took = seconds_between(s.started_at, s.finished_at)
    return select(func.avg(took)).where(*recent).scalar_subquery()


def _seconds(took: float | None, ahead: int, running: int, slots: int) -> float | None:
    """Return in about how many seconds a step begins, with `ahead` steps before it."""
    if took is None or not slots:
        return None
    return round(max(0, ahead - (slots - running) + 1) / slots * took, 1)
