"""Reading groups of jobs; what a group shows is counted from its jobs."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, exists, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.groups import GroupFilter, GroupView
from kgym.api.key_value_tags import bug_and_patch
from kgym.api.outcomes import Outcome
from kgym.api.patch_rows import PatchPage, PatchRow
from kgym.api.states import State
from kgym.api.steps import StepKind
from kgym.bugs.bug import patch_tag
from kgym_scheduler.database import views
from kgym_scheduler.database.counts import GroupCounts
from kgym_scheduler.database.tables import facets, groups, jobs, steps
from kgym_scheduler.errors import no_group

# Maximum characters of a page: a check of a thousand patches has half a million. Minimum characters
# of a patch, besides the tags and the title of its job, which each patch repeats.
_LARGEST, _SHORTEST = 1 << 20, 35


async def page(
    connection: AsyncConnection, conditions: GroupFilter, caller: str
) -> tuple[Sequence[Row[Any]], str | None]:
    """Return a page of the matching groups, newest first, and the cursor of the next page."""
    order = groups.c.created_at, groups.c.id
    query = select(groups)
    if conditions.mine:
        query = query.where(groups.c.submitter == caller)
    if conditions.cursor:
        query = query.where(tuple_(*order) < views.position(conditions.cursor))
    query = query.order_by(*(column.desc() for column in order)).limit(conditions.limit + 1)
    rows = (await connection.execute(query)).all()
    shown = rows[: conditions.limit]
    return shown, views.cursor(shown[-1]) if len(rows) > conditions.limit else None


async def get(connection: AsyncConnection, submitter: str, name: str) -> Row[Any]:
    """Return the group; raise NotFound if it does not exist."""
    named = select(groups).where(groups.c.submitter == submitter, groups.c.name == name)
    if (row := (await connection.execute(named)).one_or_none()) is None:
        raise no_group(submitter, name)
    return row


async def check(connection: AsyncConnection, submitter: str, name: str) -> None:
    """Raise NotFound if the group does not exist."""
    named = select(jobs.c.id).where(jobs.c.submitter == submitter, jobs.c.group_name == name)
    if await connection.scalar(named.limit(1)) is None:
        raise no_group(submitter, name)


async def patches(
    connection: AsyncConnection, submitter: str, name: str, after: int, limit: int
) -> PatchPage:
    """Return the patches of a group's next jobs after number `after`, in order."""
    j = jobs.c
    own = (j.submitter == submitter, j.group_name == name)
    repeated = func.length(j.tags) + func.coalesce(func.length(j.title), 0)
    size = func.coalesce(func.length(j.patches) * (1 + repeated // _SHORTEST), 0)
    sizes = select(j.id, size).where(*own, j.id > after).order_by(j.id).limit(limit + 1)
    ids = _prefix([(row[0], row[1]) for row in await connection.execute(sizes)], limit)
    query: Select[Any] = (
        select(j.id, j.state, j.tags, j.outcome, j.verdict, j.title, j.reason, j.patches)
        .where(j.id.in_(ids.shown))
        .order_by(j.id)
    )
    rows = (await connection.execute(query)).all()
    seconds = await _seconds(connection, ids.shown)
    listed = [patch for row in rows for patch in _patches(row, seconds.get(row.id, 0.0))]
    # A checked patch that was tried is listed by its trial alone, unless its tag is ambiguous.
    count = Counter((patch.job, _tag(patch)) for patch in listed)
    checked = {_tag(patch) for patch in listed if patch.outcome is Outcome.COMPILES}
    tried = await _tried(connection, own, sorted(checked)) if checked else set()
    return PatchPage(
        patches=[
            patch
            for patch in listed
            if patch.outcome is not Outcome.COMPILES
            or count[patch.job, _tag(patch)] > 1
            or (patch.bug, _tag(patch)) not in tried
        ],
        next=str(ids.shown[-1]) if ids.more else None,
    )


async def _tried(
    connection: AsyncConnection, own: Sequence[ColumnElement[bool]], tags: Sequence[str]
) -> set[tuple[str | None, str]]:
    """Return bug and tag of the patches with one of these tags that jobs of the group try."""
    named = facets.c.facet.in_([f"tag:{tag}" for tag in tags])
    # A check may have such a tag, too, but tries no patch.
    check = exists().where(steps.c.job_id == jobs.c.id, steps.c.kind == StepKind.CHECK)
    query = select(jobs.c.tags).join(facets, facets.c.job_id == jobs.c.id)
    tried = await connection.scalars(query.where(*own, named, ~check))
    pairs = (bug_and_patch(json.loads(text)) for text in tried)
    return {(bug, f"patch={patch}") for bug, patch in pairs}


def _tag(patch: PatchRow) -> str:
    return patch_tag(patch.patch or "")


class _Prefix(NamedTuple):
    """The jobs of a page, and whether there are others."""

    shown: list[int]
    more: bool


def _prefix(sizes: Sequence[tuple[int, int]], limit: int) -> _Prefix:
    """Return the first jobs that fit on a page, but at least one."""
    total, shown = 0, list[int]()
    for job_id, size in sizes[:limit]:
        total += size
        if shown and total > _LARGEST:
            break
        shown.append(job_id)
    return _Prefix(shown, len(sizes) > len(shown))


def view(group: Row[Any], counts: GroupCounts) -> GroupView:
    """Return the group with its counts."""
    outcomes = Counter[Outcome]()
    for count in counts:
        outcomes[views.outcome_of(count)] += count.jobs
    return GroupView(
        name=group.name,
        submitter=group.submitter,
        created_at=group.created_at,
        updated_at=max(count.updated_at for count in counts),
        jobs=outcomes.total(),
        outcomes={outcome: outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
    )


async def _seconds(connection: AsyncConnection, job_ids: Iterable[int]) -> dict[int, float]:
    """Return, by job, how long its finished steps took together."""
    s = steps.c
    ended = select(s.job_id, s.started_at, s.finished_at).where(
        s.job_id.in_(list(job_ids)), s.started_at.is_not(None), s.finished_at.is_not(None)
    )
    seconds: dict[int, float] = {}
    for job_id, begun, done in await connection.execute(ended):
        seconds[job_id] = seconds.get(job_id, 0.0) + (done - begun).total_seconds()
    return seconds


def _patches(row: Row[Any], seconds: float) -> list[PatchRow]:
    """Return the rows of a job: one for each patch; a single one if it has no patch."""
    tags = json.loads(row.tags)
    bug, patch = bug_and_patch(tags)
    about = {
        "job": row.id,
        "bug": bug,
        "state": State(row.state),
        "tags": tags,
        "title": row.title,
        "verdict": row.verdict,
        "seconds": round(seconds, 1),
    }
    own = {"patch": patch, "outcome": views.outcome_of(row), "reason": row.reason}
    summaries = json.loads(row.patches) if row.patches else [own]
    if len(summaries) == 1:  # the tag names the patch of a trial as its submitter knows it
        summaries[0]["patch"] = patch or summaries[0].get("patch")
    return [PatchRow.model_validate({**about, **summary}) for summary in summaries]
