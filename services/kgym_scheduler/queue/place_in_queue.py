"""Where a queued step stands: how many come before it, and about how soon it begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ScalarSelect, Select, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import State
from kgym.api.worker_calls import WorkerInfo
from kgym_scheduler.database.counts import seconds_between
from kgym_scheduler.database.tables import QUEUED, RUNNING, lanes, steps

# Steps before it that are counted: further ones make no difference to anybody.
MOST = 10_000
# Of the newest steps, those of the kind that have succeeded tell how long one takes.
_RECENT = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a queued step; `seconds` is None where nothing tells."""

    ahead: int
    seconds: float | None


async def of(
    connection: AsyncConnection, job_id: int, number: int, live: Sequence[WorkerInfo]
) -> Place:
    """Return the place of a step among the queued ones of its kind.

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
        _took(connection.dialect.name, step.kind).label("took"),
    )
    row = (await connection.execute(counted)).one()
    slots = sum(worker.slots for worker in live if step.kind in worker.kinds)
    took = None if row.took is None else float(row.took)
    return Place(row.ahead, _seconds(took, row.ahead, row.running, slots))


def before(kind: str, place: tuple[int, int, int]) -> Select[tuple[int]]:
    """Return the queued steps of a kind before this rank, turn and id; read from an index."""
    of_kind = select(lanes.c.id).where(lanes.c.kind == kind)  # it has the steps by lane
    order = tuple_(steps.c.rank, steps.c.turn, steps.c.id)
    return select(steps.c.id).where(QUEUED, steps.c.lane.in_(of_kind), order < tuple_(*place))


def _count(found: Select[tuple[int]]) -> ScalarSelect[int]:
    return select(func.count()).select_from(found.limit(MOST).subquery()).scalar_subquery()


def _took(dialect: str, kind: str) -> ScalarSelect[Any]:
    """Return how many seconds steps of a kind took of late; NULL where none has succeeded."""
    s = steps.c
    newest = select(func.max(s.id)).scalar_subquery()
    recent = s.id > newest - _RECENT, s.kind == kind, s.state == State.SUCCEEDED
    took = seconds_between(dialect, s.started_at, s.finished_at)
    return select(func.avg(took)).where(*recent).scalar_subquery()


def _seconds(took: float | None, ahead: int, running: int, slots: int) -> float | None:
    """Return about how soon a step begins that so many stand before, at so many places."""
    if took is None or not slots:
        return None
    return round(max(0, ahead - (slots - running) + 1) / slots * took, 1)
