"""Lanes: where steps of one kind wait that need the same of a worker."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, bindparam, literal_column, select, text, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import Needs, StepKind, StepSpec
from kgym_scheduler.database.single_statements import Connection, Found, Singles
from kgym_scheduler.database.tables import QUEUED, lanes, steps

Place = tuple[str, str]
"""Step kind and needs (JSON)."""


# A scalar subquery is a look into the index for each lane; EXISTS may become a join.
_WAITS = select(steps.c.id).where(QUEUED, steps.c.lane == lanes.c.id).limit(1)
_BUSY = select(lanes).where(
    lanes.c.kind.in_(bindparam("kinds", expanding=True)), _WAITS.scalar_subquery().is_not(None)
)


CLAIMING = 0x6B67796D
"""PostgreSQL's lock of whoever claims: any number that is nobody else's, "kgym"."""
OFFERED = """
SELECT lanes.id AS lane, lanes.kind, lanes.needs, step.id, step.job_id, step.rank, step.turn,
    turns.turn AS last
FROM lanes CROSS JOIN LATERAL (
    SELECT id, job_id, rank, turn FROM steps
    WHERE state = 'queued' AND lane = lanes.id AND not_before <= :now
    ORDER BY rank, turn, id LIMIT :limit) AS step
LEFT JOIN turns
    ON turns.submitter = '' AND turns.kind = lanes.kind AND turns.rank = step.rank
WHERE lanes.kind = ANY(:kinds)
"""
"""The lanes in which steps wait that may begin now, each with the first of them."""
_OFFERED = text(OFFERED)
# A lane that is found takes the lock; what is read next sees what others have done meanwhile.
_BUSY_ALONE = _BUSY.add_columns(
    literal_column(f"(SELECT pg_advisory_xact_lock({CLAIMING}))").label("alone")
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
    """Return the lane that a step waits in: its kind, and what it needs as JSON."""
    return str(spec.kind), spec.needs().model_dump_json(exclude_defaults=True)


async def numbers(
    connection: Connection, places: Collection[Place], known: dict[Place, int]
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


async def offered(
    singles: Singles, now: datetime, kinds: Sequence[StepKind], limit: int
) -> tuple[list[Lane], list[Found]]:
    """Return the lanes of these kinds in which steps wait that may begin; and the steps.

    Of each lane the first ones, each with the turn that was claimed last of its kind.
    """
    rows = await singles.execute(_OFFERED, {"now": now, "kinds": list(kinds), "limit": limit})
    return of(rows), rows


def of(offers: Sequence[Found]) -> list[Lane]:
    """Return the lanes that these rows of OFFERED are of."""
    known = {(row.lane, row.kind, row.needs): None for row in offers}
    return [_known(*lane) for lane in known]


async def by_id(connection: AsyncConnection, ids: Collection[int]) -> list[Lane]:
    """Return the lanes with these ids, in any order."""
    return list(map(_lane, await connection.execute(select(lanes).where(lanes.c.id.in_(ids)))))


def _lane(row: Row[Any]) -> Lane:
    return _known(row.id, row.kind, row.needs)


@lru_cache(1000)
def _known(lane_id: int, kind: str, needs: str) -> Lane:
    return Lane(lane_id, StepKind(kind), Needs.model_validate_json(needs))


async def _find(connection: Connection, places: Collection[Place]) -> dict[Place, int]:
    rows = await connection.execute(
        select(lanes).where(tuple_(lanes.c.kind, lanes.c.needs).in_(list(places)))
    )
    return {(row.kind, row.needs): row.id for row in rows.all()}
