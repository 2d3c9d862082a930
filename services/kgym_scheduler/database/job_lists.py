"""Lists and counts of jobs, at a bounded cost whatever the conditions.

One index serves some of the conditions, in the order of the list. The others are tested on the
jobs that the index yields, up to a limit. So no combination of conditions costs more than
another: a search for something rare yields short pages, each with a cursor to go on.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, and_, exists, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.jobs import JobConditions
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import events, facets, jobs, steps

# Jobs that are tested for one page,
SCANNED = 2000
# for one count,
COUNTED = 10_000
# and for one count that searches text, for which the jobs' rows have to be read.
READ = 2000
# Jobs or events in the lists of the peer API. Their pages skip by number and show the total: both
# costs grow with the length of the list.
NEWEST = 4000
# The states of unfinished jobs. No job is pending: its first step is queued with it, each other
# step with the end of the step before.
_UNDER_WAY = {Outcome.WAITING: State.QUEUED, Outcome.RUNNING: State.RUNNING}


class JobList:
    """The jobs that match the conditions, newest first."""

    def __init__(self, conditions: JobConditions, caller: str) -> None:
        self.scanned = SCANNED
        self.counted = READ if conditions.text else COUNTED
        self._tests: list[ColumnElement[bool]] = []
        self._order: tuple[ColumnElement[Any], ColumnElement[Any]] = jobs.c.created_at, jobs.c.id
        self._of_table: Any = jobs
        # Jobs chosen by number get no limit: with one, PostgreSQL would scan in order of time.
        self._named = conditions.ids is not None
        served = self._serve(conditions, caller)
        if conditions.created_after:
            served.append(self._order[0] >= conditions.created_after)
        if conditions.created_before:
            served.append(self._order[0] < conditions.created_before)
        self._served = served
        if conditions.text:
            self._tests.append(_has(conditions.text))

    @property
    def is_whole(self) -> bool:
        """Whether the index serves all conditions, so that no job is tested."""
        return not self._tests

    def page(
        self, columns: Sequence[ColumnElement[Any]], limit: int, cursor: str | None
    ) -> Select[Any]:
        """Return the query for `limit` jobs after the cursor."""
        seen = self._seen(cursor, limit if self.is_whole else None)
        matching = select(seen.c.created_at, seen.c.id)
        if self._tests:
            # PostgreSQL turns an EXISTS without OFFSET into a join, and may then test every job.
            own = select(jobs.c.id).where(jobs.c.id == seen.c.id, *self._tests).limit(1).offset(0)
            matching = matching.where(exists(own.correlate(seen)))
        newest = matching.order_by(seen.c.created_at.desc(), seen.c.id.desc()).limit(limit)
        page = newest.subquery()
        shown = select(*columns).select_from(page.join(jobs, jobs.c.id == page.c.id))
        return shown.order_by(page.c.created_at.desc(), page.c.id.desc())

    def last_seen(self, cursor: str | None) -> Select[Any]:
        """Return the query for the last job that is tested for a page, and how many are."""
        seen = self._seen(cursor)
        return (
            select(seen.c.created_at, seen.c.id, func.count().over().label("jobs"))
            .order_by(seen.c.created_at, seen.c.id)
            .limit(1)
        )

    def count(self) -> Select[Any]:
        """Return the query for how many of the first `counted` jobs match, and their number."""
        seen = self._seen(None, self.counted + 1)
        met = and_(*self._tests) if self._tests else seen.c.id.is_not(None)
        tested = seen if self.is_whole else seen.join(jobs, jobs.c.id == seen.c.id)
        counts: Select[*tuple[Any, ...]] = select(
            func.count().filter(met).label("met"), func.count().label("seen")
        )
        return counts.select_from(tested)

    def _serve(self, conditions: JobConditions, caller: str) -> list[ColumnElement[bool]]:
        """Choose the index of the condition that usually matches the fewest jobs."""
        submitters = {
            name for name in (conditions.submitter, caller if conditions.mine else None) if name
        }
        equal = list(_equal(conditions))
        if conditions.ids:
            self._tests += [jobs.c.submitter == name for name in submitters]
            self._tests += [column == value for column, value in equal]
            self._tests += map(_of_facet, _facets(conditions))
            return [jobs.c.id.in_(map(int, conditions.ids.split(",")))]
        chosen = _facets(conditions)
        first = chosen[0] if chosen else None
        outcome = conditions.outcome is not None
        if first and not (first.startswith("kind:") and (submitters or outcome)):
            self._of_table, self._order = facets, (facets.c.created_at, facets.c.job_id)
            self._tests += [jobs.c.submitter == name for name in submitters]
            self._tests += map(_of_facet, chosen[1:])
            own = [facets.c.facet == first]
            for column, value in equal:
                if column is jobs.c.state:
                    own.append(facets.c.state == value)
                else:
                    self._tests.append(column == value)
            return own
        self._tests += map(_of_facet, chosen)
        indexed = [jobs.c.submitter == name for name in sorted(submitters)]
        indexed += [column == value for column, value in equal]
        self._tests += indexed[1:]
        return indexed[:1]

    def _seen(self, cursor: str | None, scanned: int | None = None) -> Subquery:
        at, number = self._order
        query = select(at.label("created_at"), number.label("id")).select_from(self._of_table)
        query = query.where(*self._served)
        if cursor:
            query = query.where(tuple_(at, number) < views.position(cursor))
        if self._named:
            return query.subquery()
        return query.order_by(at.desc(), number.desc()).limit(scanned or self.scanned).subquery()


def clauses(conditions: JobConditions, caller: str) -> list[ColumnElement[bool]]:
    """Return the conditions as SQL, without regard to indexes."""
    j = jobs.c
    tests = [column == value for column, value in _equal(conditions)]
    if conditions.submitter:
        tests.append(j.submitter == conditions.submitter)
    if conditions.ids:
        tests.append(j.id.in_(map(int, conditions.ids.split(","))))
    if conditions.mine:
        tests.append(j.submitter == caller)
    if conditions.created_after:
        tests.append(j.created_at >= conditions.created_after)
    if conditions.created_before:
        tests.append(j.created_at < conditions.created_before)
    if conditions.text:
        tests.append(_has(conditions.text))
    return [*tests, *map(_of_facet, _facets(conditions))]


def _equal(conditions: JobConditions) -> Iterator[tuple[Any, str]]:
    """Yield the columns that must have a value; an unfinished job has no stored outcome."""
    outcome, state = conditions.outcome, conditions.state
    if outcome is not None:
        under_way = _UNDER_WAY.get(outcome)
        yield (jobs.c.state, under_way) if under_way else (jobs.c.outcome, outcome)
    if state is not None:
        yield jobs.c.state, state


def _facets(conditions: JobConditions) -> list[str]:
    named = {
        "group:": conditions.group,
        "tag:": conditions.tag,
        "tag:bug=": conditions.bug,
        "entry:": conditions.entry,
        "kind:": conditions.kind,
    }
    return [f"{what}{value}" for what, value in named.items() if value]


def _of_facet(facet: str) -> ColumnElement[bool]:
    own = select(facets.c.job_id).where(facets.c.job_id == jobs.c.id, facets.c.facet == facet)
    return exists(own)


def _has(text: str) -> ColumnElement[bool]:
    """Return the test whether a job's number is `text`, or its words contain it in any case."""
    words = (jobs.c.title, jobs.c.tags, jobs.c.group_name, jobs.c.submitter, jobs.c.words)
    tests = [column.icontains(text, autoescape=True) for column in words]
    if text.isdecimal() and len(text) <= 18:
        tests.append(jobs.c.id == int(text))
    return or_(*tests)


async def newest_jobs(
    connection: AsyncConnection, by_change: bool, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return a part of the newest jobs' ids, latest first, and the number of all of them."""
    seen = _newest(jobs.c.id, jobs.c.updated_at, jobs.c.created_at).subquery()
    order = seen.c.updated_at if by_change else seen.c.created_at
    query = select(seen.c.id).order_by(order.desc(), seen.c.id.desc()).offset(skip).limit(limit)
    count = await connection.scalar(select(func.count()).select_from(seen))
    return list((await connection.scalars(query)).all()), count or 0


async def tagged_jobs(
    connection: AsyncConnection, tag: str, skip: int, limit: int
) -> tuple[list[int], int]:
    """Return a part of the ids of the jobs with a tag, latest first, and their number."""
    f = facets.c
    own = f.facet == f"tag:{tag}"
    query = select(f.job_id).where(own).order_by(f.created_at.desc(), f.job_id.desc())
    ids = await connection.scalars(query.offset(skip).limit(limit))
    bounded = select(f.job_id).where(own).limit(NEWEST).subquery()
    count = await connection.scalar(select(func.count()).select_from(bounded))
    return list(ids.all()), count or 0


async def newest_tags(connection: AsyncConnection) -> list[tuple[int, list[str]]]:
    """Return the newest jobs' ids and tags, latest first."""
    rows = await connection.execute(_newest(jobs.c.id, jobs.c.tags))
    return [(row.id, json.loads(row.tags)) for row in rows]


async def newest_logs(
    connection: AsyncConnection, job_id: int | None, skip: int, limit: int
) -> tuple[Sequence[Any], int]:
    """Return a part of the newest log events (at, job_id, data, kind, worker), and their number."""
    e = events.c
    seen = select(e.id, e.job_id, e.step, e.at, e.kind, e.data)
    if job_id is not None:
        seen = seen.where(e.job_id == job_id)
    newest = seen.order_by(e.id.desc()).limit(NEWEST).subquery()
    lines = select(newest).where(newest.c.kind == "log").subquery()
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
