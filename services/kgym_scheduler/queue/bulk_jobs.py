"""Many jobs submitted or aborted in one transaction."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.bulk import JOBS, Aborted, AbortFilter, AbortRequest
from kgym.api.jobs import JobRequest
from kgym.errors import UserError
from kgym_scheduler.database.tables import UNFINISHED, facets, jobs
from kgym_scheduler.errors import Forbidden, not_yours
from kgym_scheduler.queue import step_rules
from kgym_scheduler.queue.job_changes import Changed, Changes
from kgym_scheduler.queue.submission import Added, Submission


def submissions(
    requests: Sequence[JobRequest], key: str | None, submitter: str
) -> list[Submission]:
    """Return the jobs to add, each under a key of its own that the whole call's leads to."""
    return [
        Submission(one, key and f"{key}:{number}", submitter) for number, one in enumerate(requests)
    ]


def all_added(answers: Sequence[Added | Exception]) -> list[Added]:
    """Return the jobs as they were added; raise the error of the first that was not."""
    for number, answer in enumerate(answers):
        if isinstance(answer, UserError):
            errors = [
                {**error, "location": re.sub("^body", f"body.jobs.{number}", error["location"])}
                for error in answer.details.get("errors", [])  # type: ignore[attr-defined]
            ]
            details = {**answer.details, **({"errors": errors} if errors else {})}
            message = f"job {number} of the request: {answer.message}"
            raise type(answer)(answer.reason, message, **details)
        if isinstance(answer, Exception):
            raise answer
    return [answer for answer in answers if not isinstance(answer, Exception)]


async def abort(
    connection: AsyncConnection,
    now: datetime,
    wanted: AbortRequest,
    caller: str,
    owner: str | None,
) -> tuple[Aborted, list[Changed]]:
    """Abort what is unfinished of the jobs; raise Forbidden if one of them is not the owner's."""
    ids, more = wanted.jobs or [], False
    if wanted.filter is not None:
        if owner is not None and not wanted.filter.mine:
            raise Forbidden("not_your_job", "jobs of others take the scope admin", scope="admin")
        found = await connection.scalars(_unfinished(wanted.filter, caller))
        ids = list(found.all())
        ids, more = ids[:JOBS], len(ids) > JOBS
    changes = await Changes.load(connection, now, set(ids))
    done = Aborted(aborted=[], more=more)
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


def _unfinished(wanted: AbortFilter, caller: str) -> Select[Any]:
    """Return the ids of the unfinished jobs that are wanted, and one more than a call may abort."""
    query = select(jobs.c.id).where(UNFINISHED)
    if wanted.mine:
        query = query.where(jobs.c.submitter == caller)
    for name in ("kind", "tag"):
        if value := getattr(wanted, name):
            of = select(facets.c.job_id).where(facets.c.facet == f"{name}:{value}")
            query = query.where(jobs.c.id.in_(of))
    if wanted.created_after:
        query = query.where(jobs.c.created_at >= wanted.created_after)
    if wanted.created_before:
        query = query.where(jobs.c.created_at < wanted.created_before)
    return query.order_by(jobs.c.id).limit(JOBS + 1)
