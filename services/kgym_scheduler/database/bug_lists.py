"""Lists of bugs, at a bounded cost whatever the conditions."""

import json
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.bugs import BugFilter, BugPage, BugView, PatchState
from kgym.api.states import State
from kgym.api.steps import Verdict
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import subjects

SCANNED = 4000
"""Bugs that are tested for one page."""


async def page(connection: AsyncConnection, wanted: BugFilter) -> BugPage:
    """Return one page of the bugs that are wanted, those active last first."""
    s = subjects.c
    order = s.active_at, s.id
    seen = select(subjects).where(s.kind == "bug")
    if wanted.name is not None:
        seen = seen.where(s.name == wanted.name)
    if wanted.cursor:
        seen = seen.where(tuple_(*order) < views.position(wanted.cursor))
    seen = seen.order_by(*(column.desc() for column in order))
    tests = _tests(wanted)
    looked_at = seen.limit(SCANNED if tests else wanted.limit + 1).subquery()
    query = (
        select(subjects)
        .select_from(looked_at.join(subjects, s.id == looked_at.c.id))
        .where(*tests)
        .order_by(*(column.desc() for column in order))
        .limit(wanted.limit + 1)
    )
    rows = (await connection.execute(query)).all()
    shown = rows[: wanted.limit]
    end = shown[-1] if len(rows) > wanted.limit else None
    if end is None and tests:  # it has not looked at all
        count = func.count().over().label("bugs")
        last = select(looked_at.c.active_at, looked_at.c.id, count)
        last = last.order_by(looked_at.c.active_at, looked_at.c.id).limit(1)
        found = (await connection.execute(last)).one_or_none()
        end = found if found is not None and found.bugs == SCANNED else None
    return BugPage(bugs=[_view(row) for row in shown], next=_cursor(end) if end else None)


def counts_of(row: Row[Any] | None) -> tuple[dict[State, int], dict[Verdict, int]]:
    """Return the jobs of a subject by state and by verdict, those that there are; none of None."""
    if row is None:
        return {}, {}
    told = json.loads(row.counts)
    states = {State(name): number for name, number in told["states"].items()}
    return states, {Verdict(name): number for name, number in told["verdicts"].items()}


def _cursor(row: Row[Any]) -> str:
    return views.cursor_at(row.active_at, row.id)


def _tests(wanted: BugFilter) -> list[ColumnElement[bool]]:
    s = subjects.c
    given: dict[Any, Any] = {s.crash_class: wanted.crash_class, s.verdict: wanted.verdict}
    tests = [column == value for column, value in given.items() if value is not None]
    if wanted.subsystem is not None:
        below = s.subsystem.startswith(f"{wanted.subsystem}/", autoescape=True)
        tests.append(or_(s.subsystem == wanted.subsystem, below))
    match wanted.patch:
        case "resolved":
            tests.append(s.resolved > 0)
        case "unresolved":
            tests += [s.resolved == 0, s.unresolved > 0]
        case "untried":
            tests += [s.resolved == 0, s.unresolved == 0]
    if wanted.text is not None:
        words = (s.name, s.title)
        tests.append(or_(*(column.icontains(wanted.text, autoescape=True) for column in words)))
    return tests


def _patch(row: Row[Any]) -> PatchState:
    if row.resolved:
        return "resolved"
    return "unresolved" if row.unresolved else "untried"


def _view(row: Row[Any]) -> BugView:
    states, verdicts = counts_of(row)
    return BugView(
        name=row.name,
        crash_class=row.crash_class,
        subsystem=row.subsystem,
        title=row.title,
        jobs=sum(states.values()),
        states=states,
        verdicts=verdicts,
        patch=_patch(row),
        resolved=row.resolved,
        unresolved=row.unresolved,
        resolved_job=row.resolved_job,
        verdict=views.verdict_of(row),
        judged_at=row.judged_at,
        judged_job=row.judged_job,
        created_at=row.created_at,
        active_at=row.active_at,
    )
