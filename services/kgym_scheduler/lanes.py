"""Lanes: where steps of one kind wait that need the same of a worker."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, literal_column, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.capabilities import Capabilities, lacking
from kgym.steps import Needs, StepKind, StepSpec
from kgym_scheduler.tables import QUEUED, lanes, steps

Place = tuple[str, str]
"""Step kind and needs (JSON)."""


# A scalar subquery is a look into the index for each lane; EXISTS may become a join.
_WAITS = select(steps.c.id).where(QUEUED, steps.c.lane == lanes.c.id).limit(1)
_BUSY = select(lanes).where(
    lanes.c.kind.in_(bindparam("kinds", expanding=True)), _WAITS.scalar_subquery().is_not(None)
)


_FIRST = 0x6B67796D  # any number that is nobody else's: "kgym"
# A lane that is found takes the lock; what is read next sees what others have done meanwhile.
_BUSY_ALONE = _BUSY.add_columns(
    literal_column(f"(SELECT pg_advisory_xact_lock({_FIRST}))").label("alone")
)


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
    """Return where a step waits."""
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
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        rows = [{"kind": kind, "needs": needs} for kind, needs in missing]
        await connection.execute(insert(lanes).values(rows).on_conflict_do_nothing())
        found |= await _find(connection, missing)
    return found


async def busy(
    connection: AsyncConnection, kinds: Sequence[StepKind], *, alone: bool = False
) -> list[Lane]:
    """Return the lanes of these kinds in which steps wait.

    With `alone`, if there are any, no other transaction that asks so goes on before this one ends.
    """
    locking = alone and connection.dialect.name == "postgresql"  # SQLite has one writer
    rows = await connection.execute(_BUSY_ALONE if locking else _BUSY, {"kinds": list(kinds)})
    return list(map(_lane, rows.all()))


async def by_id(connection: AsyncConnection, ids: Collection[int]) -> list[Lane]:
    """Return these lanes."""
    return list(map(_lane, await connection.execute(select(lanes).where(lanes.c.id.in_(ids)))))


def _lane(row: Row[Any]) -> Lane:
    return Lane(row.id, StepKind(row.kind), Needs.model_validate_json(row.needs))


async def _find(connection: AsyncConnection, places: Collection[Place]) -> dict[Place, int]:
    rows = await connection.execute(
        select(lanes).where(tuple_(lanes.c.kind, lanes.c.needs).in_(list(places)))
    )
    return {(row.kind, row.needs): row.id for row in rows.all()}
