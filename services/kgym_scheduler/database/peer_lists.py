"""Lists by how much is left out, as kGymSuite's clients page: of what is newest, bounded."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.database.tables import events, facets, jobs, steps

LOOKED_AT = 4000
"""Jobs, or events, that a list is made of: the newest."""


async def newest(
    connection: AsyncConnection, by_change: bool, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return ids of jobs, the latest first, and of how many these are a part."""
    seen = _newest_jobs(jobs.c.id, jobs.c.updated_at, jobs.c.created_at).subquery()
    order = seen.c.updated_at if by_change else seen.c.created_at
    query = select(seen.c.id).order_by(order.desc(), seen.c.id.desc()).offset(skip).limit(limit)
    count = await connection.scalar(select(func.count()).select_from(seen))
    return list((await connection.scalars(query)).all()), count or 0


async def tagged(
    connection: AsyncConnection, tag: str, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return ids of jobs with a tag, the latest first, and how many there are."""
    f = facets.c
    own = f.facet == f"tag:{tag}"
    query = select(f.job_id).where(own).order_by(f.created_at.desc(), f.job_id.desc())
    found = await connection.scalars(query.offset(skip).limit(limit))
    bounded = select(f.job_id).where(own).limit(LOOKED_AT).subquery()
    count = await connection.scalar(select(func.count()).select_from(bounded))
    return list(found.all()), count or 0


async def tags(connection: AsyncConnection) -> list[tuple[int, list[str]]]:
    """Return the tags of the newest jobs, the latest first."""
    rows = await connection.execute(_newest_jobs(jobs.c.id, jobs.c.tags))
    return [(row.id, json.loads(row.tags)) for row in rows]


async def logs(
    connection: AsyncConnection, job_id: int | None, skip: int, limit: int
) -> tuple[Sequence[Any], int]:
    """Return what was logged last: (at, job_id, worker, kind, data); and of how many."""
    e = events.c
    seen = select(e.id, e.job_id, e.step, e.at, e.kind, e.data)
    if job_id is not None:
        seen = seen.where(e.job_id == job_id)
    looked_at = seen.order_by(e.id.desc()).limit(LOOKED_AT).subquery()
    said = select(looked_at).where(looked_at.c.kind == "log").subquery()
    joined = said.join(steps, and_(steps.c.job_id == said.c.job_id, steps.c.number == said.c.step))
    query = (
        select(said.c.at, said.c.job_id, said.c.data, steps.c.kind, steps.c.worker)
        .select_from(joined)
        .order_by(said.c.id.desc())
        .offset(skip)
        .limit(limit)
    )
    count = await connection.scalar(select(func.count()).select_from(said))
    return (await connection.execute(query)).all(), count or 0


def _newest_jobs(*columns: Any) -> Select[Any]:
    order = jobs.c.created_at.desc(), jobs.c.id.desc()
    return select(*columns).order_by(*order).limit(LOOKED_AT)
