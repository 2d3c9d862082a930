"""Lanes: queues of steps of one kind that need the same capabilities of a worker."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, bindparam, select, tuple_
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import Needs, StepKind, StepSpec
from kgym_scheduler.database.tables import QUEUED, lanes, steps

# Step kind and needs (JSON).
Place = tuple[str, str]


# A scalar subquery is one index look-up for each lane. PostgreSQL may turn EXISTS into a join.
_WAITS = select(steps.c.id).where(QUEUED, steps.c.lane == lanes.c.id).limit(1)
_BUSY = select(lanes).where(
    lanes.c.kind.in_(bindparam("kinds", expanding=True)), _WAITS.scalar_subquery().is_not(None)
)


# A claim locks the lanes first, so that its next statement sees which steps other claims have
# taken. `key_share` lets transactions that add steps refer to the lane meanwhile.
_BUSY_LOCKED = _BUSY.order_by(lanes.c.id).with_for_update(key_share=True)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane with queued steps."""

    id: int
    kind: StepKind
    needs: Needs

    def fits(self, kinds: Collection[StepKind], has: Capabilities | None) -> bool:
        """Return whether a worker of these kinds and capabilities can run the lane's steps."""
        return self.kind in kinds and not lacking(self.needs, has)


def place(spec: StepSpec) -> Place:
    """Return the lane of a step: its kind, and its needs as JSON."""
    return str(spec.kind), spec.needs().model_dump_json(exclude_defaults=True)


async def numbers(
    connection: AsyncConnection, places: Collection[Place], known: dict[Place, int]
) -> dict[Place, int]:
    """Return the lanes' ids; create missing lanes. `known` caches the ids of existing lanes."""
    if unknown := set(places) - set(known):
        known |= await _find(connection, unknown)
    ids = {place: known[place] for place in places if place in known}
    if missing := sorted(set(places) - set(ids)):
        rows = [{"kind": kind, "needs": needs} for kind, needs in missing]
        await connection.execute(insert(lanes).values(rows).on_conflict_do_nothing())
        # Not cached: the transaction may yet be rolled back.
        ids |= await _find(connection, missing)
    return ids


async def busy(
    connection: AsyncConnection, kinds: Sequence[StepKind], *, locked: bool = False
) -> list[Lane]:
    """Return the lanes of these kinds with queued steps; `locked`: lock them for writing."""
    rows = await connection.execute(_BUSY_LOCKED if locked else _BUSY, {"kinds": list(kinds)})
    return list(map(_lane, rows.all()))


async def by_id(connection: AsyncConnection, ids: Collection[int]) -> list[Lane]:
    """Return the lanes with these ids, in any order."""
    return list(map(_lane, await connection.execute(select(lanes).where(lanes.c.id.in_(ids)))))


def _lane(row: Row[Any]) -> Lane:
    return _known(row.id, row.kind, row.needs)


@lru_cache(1000)
def _known(lane_id: int, kind: str, needs: str) -> Lane:
    return Lane(lane_id, StepKind(kind), Needs.model_validate_json(needs))


async def _find(connection: AsyncConnection, places: Collection[Place]) -> dict[Place, int]:
    rows = await connection.execute(
        select(lanes).where(tuple_(lanes.c.kind, lanes.c.needs).in_(list(places)))
    )
    return {(row.kind, row.needs): row.id for row in rows.all()}
