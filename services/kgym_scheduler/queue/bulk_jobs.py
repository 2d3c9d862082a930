"""Many jobs submitted, aborted or restarted in one transaction."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.bulk import JOBS, Aborted, AbortRequest, Restarted, RestartRequest
from kgym.api.jobs import JobRequest
from kgym.errors import Conflict, Forbidden, UserError
from kgym_scheduler.database import groups
from kgym_scheduler.database.job_lists import COUNTED, JobList, clauses
from kgym_scheduler.database.tables import UNFINISHED, jobs
from kgym_scheduler.errors import not_your_group, not_yours
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.job_change import Changed
from kgym_scheduler.queue.job_changes import Changes
from kgym_scheduler.queue.submission import Submission


def submissions(
    requests: Sequence[JobRequest], key: str | None, submitter: str
) -> list[Submission]:
    """Return the jobs to add."""
    # Job N has the key KEY:N, so a repeated call finds its jobs, also at another scheduler.
    return [
        Submission(request, key and f"{key}:{number}", submitter)
        for number, request in enumerate(requests)
    ]


def at_number(number: int, error: UserError) -> UserError:
    """Return the error of a job with the job's place in the request."""
    errors = [
        {**fault, "location": re.sub("^body", f"body.jobs.{number}", fault["location"])}
        for fault in error.details.get("errors", [])  # type: ignore[attr-defined]
    ]
    details = {**error.details, **({"errors": errors} if errors else {})}
    return type(error)(error.reason, f"job {number} of the request: {error.message}", **details)


async def abort(
    connection: AsyncConnection,
    now: datetime,
    request: AbortRequest,
    caller: str,
    owner: str | None,
) -> tuple[Aborted, list[Changed]]:
    """Abort the unfinished jobs; raise Forbidden if one of them belongs to another than `owner`."""
    if request.filter is None:
        return await _abort(connection, now, request.jobs or [], owner)
    if owner is not None and not request.filter.mine:
        raise _others()
    query = select(jobs.c.id).where(UNFINISHED, *clauses(request.filter, caller))
    return await _abort_matching(connection, now, query, owner, request.expected)


async def abort_group(
    connection: AsyncConnection, now: datetime, submitter: str, name: str, owner: str | None
) -> tuple[Aborted, list[Changed]]:
    """Abort the first thousand unfinished jobs of a group (see `abort`).

    Raises NotFound if the group does not exist.
    """
    await groups.check(connection, submitter, name)
    if owner not in {None, submitter}:
        raise not_your_group(submitter, name)
    query = select(jobs.c.id).where(
        UNFINISHED, jobs.c.submitter == submitter, jobs.c.group_name == name
    )
    return await _abort_matching(connection, now, query, owner)


async def _abort_matching(
    connection: AsyncConnection,
    now: datetime,
    unfinished: Select[Any],
    owner: str | None,
    expected: int | None = None,
) -> tuple[Aborted, list[Changed]]:
    most = JOBS if expected is None else COUNTED
    matching = await connection.scalars(unfinished.order_by(jobs.c.id).limit(most + 1))
    ids = list(matching.all())  # counts and aborts the same jobs, whatever is submitted
    _check_count(len(ids), expected)
    aborted, changes = await _abort(connection, now, ids[:JOBS], owner)
    return aborted.model_copy(update={"more": len(ids) > JOBS}), changes


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
    request: RestartRequest,
    caller: str,
    owner: str | None,
) -> tuple[Restarted, list[Changed]]:
    """Restart the newest thousand matching jobs; raise Conflict if the number is unexpected.

    Raises Forbidden if the filter may match jobs of another than `owner`, and UserError
    `filter_too_wide`.
    """
    if owner is not None and not request.filter.mine:
        raise _others()
    matching = JobList(request.filter, caller)
    counted = (await connection.execute(matching.count())).one()
    if counted.seen > matching.counted:
        message = f"over {matching.counted:,} jobs to test: narrow the filter by a time or a tag"
        raise UserError("filter_too_wide", message)
    _check_count(counted.met, request.expected)
    most = JOBS if request.expected is None else min(JOBS, request.expected)
    rows = await connection.execute(matching.page([jobs.c.id], most, None))
    changes = await Changes.load(connection, now, [row.id for row in rows.all()])
    done = []
    for job in changes.jobs.values():
        if job.state == request.filter.state:  # it may have been restarted before it was locked
            step_rules.restart(job, None)
            done.append(job.id)
    changed = list((await changes.write()).values())
    return Restarted(restarted=sorted(done), more=counted.met > JOBS), changed


def _check_count(number: int, expected: int | None) -> None:
    if expected not in {None, number}:
        message = f"the filter matches {number} jobs, not {expected}: nothing was done"
        raise Conflict("count_differs", message, jobs=number)


def _others() -> Forbidden:
    return Forbidden("not_your_job", "jobs of others need the scope admin", scope="admin")
