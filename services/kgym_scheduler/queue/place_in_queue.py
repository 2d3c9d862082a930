"""Where a queued step stands: how many come before it, and about how soon it begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import State
from kgym.api.worker_calls import WorkerInfo
from kgym_scheduler.database.tables import QUEUED, RUNNING, lanes, steps

MOST = 10_000
"""Steps before it that are counted: further ones make no difference to anybody."""
_RECENT = 1000
"""Of the newest steps, those of the kind that have succeeded tell how long one takes."""


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
    ahead = await _count(connection, before(step.kind, (step.rank, step.turn, step.id)))
    running = await _count(connection, select(s.id).where(RUNNING, s.kind == step.kind))
    slots = sum(worker.slots for worker in live if step.kind in worker.kinds)
    return Place(ahead, _seconds(await _took(connection, step.kind), ahead, running, slots))


def before(kind: str, place: tuple[int, int, int]) -> Select[tuple[int]]:
    """Return the queued steps of a kind before this rank, turn and id; read from an index."""
    of_kind = select(lanes.c.id).where(lanes.c.kind == kind)  # it has the steps by lane
    order = tuple_(steps.c.rank, steps.c.turn, steps.c.id)
    return select(steps.c.id).where(QUEUED, steps.c.lane.in_(of_kind), order < tuple_(*place))


async def _count(connection: AsyncConnection, found: Select[tuple[int]]) -> int:
    counted = select(func.count()).select_from(found.limit(MOST).subquery())
    return await connection.scalar(counted) or 0


async def _took(connection: AsyncConnection, kind: str) -> list[float]:
    s = steps.c
    newest = select(func.max(s.id)).scalar_subquery()
    rows = await connection.execute(
        select(s.started_at, s.finished_at).where(
            s.id > newest - _RECENT, s.kind == kind, s.state == State.SUCCEEDED
        )
    )
    return [(row.finished_at - row.started_at).total_seconds() for row in rows if row.started_at]


def _seconds(took: Sequence[float], ahead: int, running: int, slots: int) -> float | None:
    """Return about how soon a step begins that so many stand before, at so many places."""
    if not took or not slots:
        return None
    rounds = max(0, ahead - (slots - running) + 1) / slots
    return round(rounds * sum(took) / len(took), 1)
