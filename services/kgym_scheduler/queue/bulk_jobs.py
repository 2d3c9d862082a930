"""Many jobs submitted or aborted in one transaction."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.bulk import (
    JOBS,
    Aborted,
    AbortFilter,
    AbortRequest,
    Restarted,
    RestartRequest,
)
from kgym.api.jobs import JobRequest
from kgym.errors import Conflict, Forbidden, UserError
from kgym_scheduler.database import groups
from kgym_scheduler.database.job_lists import COUNTED, JobList, conditions
from kgym_scheduler.database.tables import UNFINISHED, jobs
from kgym_scheduler.errors import not_your_group, not_yours
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.job_changes import Changed, Changes
from kgym_scheduler.queue.submission import Submission


def submissions(
    requests: Sequence[JobRequest], key: str | None, submitter: str
) -> list[Submission]:
    """Return the jobs to add, each under a key of its own that the whole call's leads to."""
    return [
        Submission(one, key and f"{key}:{number}", submitter) for number, one in enumerate(requests)
    ]


def at_number(number: int, error: UserError) -> UserError:
    """Return the error of the job of this number, with its place in the request."""
    errors = [
        {**fault, "location": re.sub("^body", f"body.jobs.{number}", fault["location"])}
        for fault in error.details.get("errors", [])  # type: ignore[attr-defined]
    ]
    details = {**error.details, **({"errors": errors} if errors else {})}
    return type(error)(error.reason, f"job {number} of the request: {error.message}", **details)


async def abort(
    connection: AsyncConnection,
    now: datetime,
    wanted: AbortRequest,
    caller: str,
    owner: str | None,
) -> tuple[Aborted, list[Changed]]:
    """Abort what is unfinished of the jobs; raise Forbidden if one of them is not the owner's."""
    if wanted.filter is None:
        return await _abort(connection, now, wanted.jobs or [], owner)
    if owner is not None and not wanted.filter.mine:
        raise _others()
    query = _unfinished(wanted.filter, caller)
    return await _abort_found(connection, now, query, owner, wanted.expected)


async def abort_group(
    connection: AsyncConnection, now: datetime, submitter: str, name: str, owner: str | None
) -> tuple[Aborted, list[Changed]]:
    """Abort what is unfinished of a group, the first thousand jobs; see `abort`.

    Raises NotFound if there is no such group.
    """
    await groups.check(connection, submitter, name)
    if owner not in {None, submitter}:
        raise not_your_group(submitter, name)
    query = select(jobs.c.id).where(
        UNFINISHED, jobs.c.submitter == submitter, jobs.c.group_name == name
    )
    return await _abort_found(connection, now, query, owner)


async def _abort_found(
    connection: AsyncConnection,
    now: datetime,
    unfinished: Select[Any],
    owner: str | None,
    expected: int | None = None,
) -> tuple[Aborted, list[Changed]]:
    most = JOBS if expected is None else COUNTED
    found = await connection.scalars(unfinished.order_by(jobs.c.id).limit(most + 1))
    ids = list(found.all())  # what is counted is what is aborted: others submit meanwhile
    _check_count(len(ids), expected)
    done, changes = await _abort(connection, now, ids[:JOBS], owner)
    return done.model_copy(update={"more": len(ids) > JOBS}), changes


async def _abort(
    connection: AsyncConnection, now: datetime, ids: Sequence[int], owner: str | None
) -> tuple[Aborted, list[Changed]]:
    changes = await Changes.load(connection, now, set(ids))
    done = Aborted(aborted=[])
    for job_id in dict.fromkeys(ids):
        job = changes.jobs.get(job_id)
        if job is None:
            done.missing.append(job_id)
            continue
        if owner not in {None, job.submitter}:
            raise not_yours(job_id, job.submitter)
        if job.state.final:
            done.finished.append(job_id)
        else:
            step_rules.abort(job)
            done.aborted.append(job_id)
    return done, list((await changes.write()).values())


async def restart(
    connection: AsyncConnection,
    now: datetime,
    wanted: RestartRequest,
    caller: str,
    owner: str | None,
) -> tuple[Restarted, list[Changed]]:
    """Restart finished jobs, the newest thousand; raise Conflict if they are not as many.

    Raises Forbidden if it could be another's than the owner's, and UserError `filter_too_wide`.
    """
    if owner is not None and not wanted.filter.mine:
        raise _others()
    of = JobList(wanted.filter, caller)
    counted = (await connection.execute(of.count())).one()
    if counted.seen > of.counted:
        message = (
            f"the filter leads to more than {of.counted:,} jobs: narrow it, by a time or a tag"
        )
        raise UserError("filter_too_wide", message)
    _check_count(counted.met, wanted.expected)
    most = JOBS if wanted.expected is None else min(JOBS, wanted.expected)
    rows = await connection.execute(of.page([jobs.c.id], most, None))
    changes = await Changes.load(connection, now, [row.id for row in rows.all()])
    done = []
    for job in changes.jobs.values():
        if job.state == wanted.filter.state:  # another may have restarted it meanwhile
            step_rules.restart(job, None)
            done.append(job.id)
    changed = list((await changes.write()).values())
    return Restarted(restarted=sorted(done), more=counted.met > JOBS), changed


def _check_count(found: int, expected: int | None) -> None:
    if expected not in {None, found}:
        message = f"the filter lets {found} jobs through, not {expected}: nothing was done"
        raise Conflict("count_differs", message, jobs=found)


def _others() -> Forbidden:
    return Forbidden("not_your_job", "jobs of others take the scope admin", scope="admin")


def _unfinished(wanted: AbortFilter, caller: str) -> Select[Any]:
    """Return the ids of the unfinished jobs that are wanted."""
    return select(jobs.c.id).where(UNFINISHED, *conditions(wanted, caller))
