"""Lists of jobs, and how many they are, at a bounded cost whatever the conditions.

One index serves some of the conditions, in the order of the list. The others are tested on the
jobs that it gives, up to so many: who looks for what is rare gets a short page, and its cursor.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, and_, exists, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import JobConditions
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import events, facets, jobs, steps

# Jobs that are looked at for one page,
SCANNED = 2000
# and for one count.
COUNTED = 10_000
# For a count where their words have to be read.
READ = 2000
# Jobs or events that a list of kGymSuite's clients consists of.
#
# Their pages skip by number, and say how many there are: with more, both would cost ever more.
NEWEST = 4000


class JobList:
    """The jobs that meet these conditions, newest first."""

    def __init__(self, wanted: JobConditions, caller: str) -> None:
        self.scanned = SCANNED
        self.counted = READ if wanted.text else COUNTED
        self._tests: list[ColumnElement[bool]] = []
        self._order: tuple[ColumnElement[Any], ColumnElement[Any]] = jobs.c.created_at, jobs.c.id
        self._of_table: Any = jobs
        # By number: with a limit, PostgreSQL would look for them in the order of time.
        self._named = wanted.ids is not None
        served = self._serve(wanted, caller)
        if wanted.created_after:
            served.append(self._order[0] >= wanted.created_after)
        if wanted.created_before:
            served.append(self._order[0] < wanted.created_before)
        self._served = served
        if wanted.text:
            self._tests.append(_has(wanted.text))

    @property
    def is_whole(self) -> bool:
        """Whether an index serves all conditions: then no job is looked at in vain."""
        return not self._tests

    def page(
        self, columns: Sequence[ColumnElement[Any]], limit: int, cursor: str | None
    ) -> Select[Any]:
        """Return so many jobs, after the cursor."""
        seen = self._seen(cursor, limit if self.is_whole else None)
        return (
            select(*columns)
            .select_from(seen.join(jobs, jobs.c.id == seen.c.id))
            .where(*self._tests)
            .order_by(seen.c.created_at.desc(), seen.c.id.desc())
            .limit(limit)
        )

    def last_seen(self, cursor: str | None) -> Select[Any]:
        """Return the last job that is looked at for this page, and how many are."""
        seen = self._seen(cursor)
        return (
            select(seen.c.created_at, seen.c.id, func.count().over().label("jobs"))
            .order_by(seen.c.created_at, seen.c.id)
            .limit(1)
        )

    def count(self) -> Select[Any]:
        """Return how many of the first `counted` jobs meet all, and how many those are."""
        seen = self._seen(None, self.counted + 1)
        met = and_(*self._tests) if self._tests else seen.c.id.is_not(None)
        looked_at = seen if self.is_whole else seen.join(jobs, jobs.c.id == seen.c.id)
        counts: Select[*tuple[Any, ...]] = select(
            func.count().filter(met).label("met"), func.count().label("seen")
        )
        return counts.select_from(looked_at)

    def _serve(self, wanted: JobConditions, caller: str) -> list[ColumnElement[bool]]:
        """Choose the index by the condition that lets fewest jobs through, as a rule."""
        submitters = {name for name in (wanted.submitter, caller if wanted.mine else None) if name}
        equal: dict[Any, Any] = {
            column: value
            for column, value in ((jobs.c.verdict, wanted.verdict), (jobs.c.state, wanted.state))
            if value is not None
        }
        if wanted.ids:
            self._tests += [jobs.c.submitter == name for name in submitters]
            self._tests += [column == value for column, value in equal.items()]
            self._tests += map(_of_facet, _facets(wanted))
            return [jobs.c.id.in_([int(one) for one in wanted.ids.split(",")])]
        chosen = _facets(wanted)
        first = chosen[0] if chosen else None
        if first and not (first.startswith("kind:") and (submitters or wanted.verdict)):
            self._of_table, self._order = facets, (facets.c.created_at, facets.c.job_id)
            self._tests += [jobs.c.submitter == name for name in submitters]
            self._tests += map(_of_facet, chosen[1:])
            if wanted.verdict is not None:
                self._tests.append(jobs.c.verdict == wanted.verdict)
            own = [facets.c.facet == first]
            return own if wanted.state is None else [*own, facets.c.state == wanted.state]
        self._tests += map(_of_facet, chosen)
        conditions = [jobs.c.submitter == name for name in sorted(submitters)]
        conditions += [column == value for column, value in equal.items()]
        self._tests += conditions[1:]
        return conditions[:1]

    def _seen(self, cursor: str | None, scanned: int | None = None) -> Subquery:
        at, number = self._order
        query = select(at.label("created_at"), number.label("id")).select_from(self._of_table)
        query = query.where(*self._served)
        if cursor:
            query = query.where(tuple_(at, number) < views.position(cursor))
        if self._named:
            return query.subquery()
        return query.order_by(at.desc(), number.desc()).limit(scanned or self.scanned).subquery()


def conditions(wanted: JobConditions, caller: str) -> list[ColumnElement[bool]]:
    """Return all that has to hold for a job, whatever serves it."""
    j = jobs.c
    given: dict[Any, Any] = {
        j.submitter: wanted.submitter,
        j.verdict: wanted.verdict,
        j.state: wanted.state,
    }
    found = [column == value for column, value in given.items() if value is not None]
    if wanted.ids:
        found.append(j.id.in_([int(one) for one in wanted.ids.split(",")]))
    if wanted.mine:
        found.append(j.submitter == caller)
    if wanted.created_after:
        found.append(j.created_at >= wanted.created_after)
    if wanted.created_before:
        found.append(j.created_at < wanted.created_before)
    if wanted.text:
        found.append(_has(wanted.text))
    return [*found, *map(_of_facet, _facets(wanted))]


def _facets(wanted: JobConditions) -> list[str]:
    named = {
        "group:": wanted.group,
        "tag:": wanted.tag,
        "tag:bug=": wanted.bug,
        "entry:": wanted.entry,
        "kind:": wanted.kind,
    }
    return [f"{what}{value}" for what, value in named.items() if value]


def _of_facet(facet: str) -> ColumnElement[bool]:
    own = select(facets.c.job_id).where(facets.c.job_id == jobs.c.id, facets.c.facet == facet)
    return exists(own)


def _has(text: str) -> ColumnElement[bool]:
    """Return whether a job's number is this text, or its words have it, in any case."""
    words = (jobs.c.title, jobs.c.tags, jobs.c.group_name, jobs.c.submitter)
    found = [column.icontains(text, autoescape=True) for column in words]
    if text.isdecimal() and len(text) <= 18:
        found.append(jobs.c.id == int(text))
    return or_(*found)


async def newest_jobs(
    connection: AsyncConnection, by_change: bool, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return ids of jobs, the latest first, and of how many these are a part."""
    seen = _newest(jobs.c.id, jobs.c.updated_at, jobs.c.created_at).subquery()
    order = seen.c.updated_at if by_change else seen.c.created_at
    query = select(seen.c.id).order_by(order.desc(), seen.c.id.desc()).offset(skip).limit(limit)
    count = await connection.scalar(select(func.count()).select_from(seen))
    return list((await connection.scalars(query)).all()), count or 0


async def tagged_jobs(
    connection: AsyncConnection, tag: str, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return ids of jobs with a tag, the latest first, and how many there are."""
    f = facets.c
    own = f.facet == f"tag:{tag}"
    query = select(f.job_id).where(own).order_by(f.created_at.desc(), f.job_id.desc())
    ids = await connection.scalars(query.offset(skip).limit(limit))
    bounded = select(f.job_id).where(own).limit(NEWEST).subquery()
    count = await connection.scalar(select(func.count()).select_from(bounded))
    return list(ids.all()), count or 0


async def newest_tags(connection: AsyncConnection) -> list[tuple[int, list[str]]]:
    """Return the tags of the newest jobs, the latest first."""
    rows = await connection.execute(_newest(jobs.c.id, jobs.c.tags))
    return [(row.id, json.loads(row.tags)) for row in rows]


async def newest_logs(
    connection: AsyncConnection, job_id: int | None, skip: int, limit: int
) -> tuple[Sequence[Any], int]:
    """Return what was logged last: (at, job_id, worker, kind, data); and of how many."""
    e = events.c
    seen = select(e.id, e.job_id, e.step, e.at, e.kind, e.data)
    if job_id is not None:
        seen = seen.where(e.job_id == job_id)
    looked_at = seen.order_by(e.id.desc()).limit(NEWEST).subquery()
    lines = select(looked_at).where(looked_at.c.kind == "log").subquery()
    its_step = and_(steps.c.job_id == lines.c.job_id, steps.c.number == lines.c.step)
    query = (
        select(lines.c.at, lines.c.job_id, lines.c.data, steps.c.kind, steps.c.worker)
        .select_from(lines.join(steps, its_step))
        .order_by(lines.c.id.desc())
        .offset(skip)
        .limit(limit)
    )
    count = await connection.scalar(select(func.count()).select_from(lines))
    return (await connection.execute(query)).all(), count or 0


def _newest(*columns: Any) -> Select[Any]:
    order = jobs.c.created_at.desc(), jobs.c.id.desc()
    return select(*columns).order_by(*order).limit(NEWEST)
