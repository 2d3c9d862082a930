"""Lanes: where steps of one kind wait that need the same of a worker."""

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


# A scalar subquery is a look into the index for each lane; EXISTS may become a join.
_WAITS = select(steps.c.id).where(QUEUED, steps.c.lane == lanes.c.id).limit(1)
_BUSY = select(lanes).where(
    lanes.c.kind.in_(bindparam("kinds", expanding=True)), _WAITS.scalar_subquery().is_not(None)
)


# Whoever claims locks the lanes first, so that its next statement sees what others have taken.
# Not against those who only refer to a lane, as all who add steps do.
_BUSY_LOCKED = _BUSY.order_by(lanes.c.id).with_for_update(key_share=True)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane in which steps wait."""

    id: int
    kind: StepKind
    needs: Needs

    def fits(self, kinds: Collection[StepKind], has: Capabilities | None) -> bool:
        """Return whether a worker of these kinds can do what waits here."""
        return self.kind in kinds and not lacking(self.needs, has)


def place(spec: StepSpec) -> Place:
    """Return the lane that a step waits in: its kind, and what it needs as JSON."""
    return str(spec.kind), spec.needs().model_dump_json(exclude_defaults=True)


async def numbers(
    connection: AsyncConnection, places: Collection[Place], known: dict[Place, int]
) -> dict[Place, int]:
    """Return the lanes' ids; a lane that is not there is made.

    Those in `known` need not be looked up; those that are found are added to it. One that is
    made is not: the transaction may yet be undone.
    """
    if wanted := set(places) - set(known):
        known |= await _find(connection, wanted)
    found = {place: known[place] for place in places if place in known}
    if missing := sorted(set(places) - set(found)):
        rows = [{"kind": kind, "needs": needs} for kind, needs in missing]
        await connection.execute(insert(lanes).values(rows).on_conflict_do_nothing())
        found |= await _find(connection, missing)
    return found


async def busy(
    connection: AsyncConnection, kinds: Sequence[StepKind], *, locked: bool = False
) -> list[Lane]:
    """Return the lanes of these kinds in which steps wait; `locked`: for this transaction alone."""
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
