"""What earlier jobs are used for: the same job is continued, calibrations are pooled.

Each function has a twin for coroutines, which takes an `AsyncClient`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from kgym.api import trusted_tags
from kgym.api.jobs import JobFilter, JobRequest, JobView
from kgym.api.steps import Calibration
from kgym.bugs import calibration
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.conclusion import reproduced
from kgym.client import AsyncClient, Client, Refused

# Calibrations of a bug that count: the newest.
_MOST_POOLED = 100


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that does what was asked, and whether it was there before (`taken_up`)."""

    job: JobView
    taken_up: bool


def submit(client: Client, request: JobRequest) -> Submission:
    """Submit the job, or take up one's own same one that is not finished."""
    marked, wanted = _marked(request)
    for job in client.jobs(wanted):
        if not job.state.final:
            return Submission(job, taken_up=True)
    return Submission(client.submit(marked), taken_up=False)


async def submit_async(client: AsyncClient, request: JobRequest) -> Submission:
    """Submit the job, or take up one's own same one that is not finished."""
    marked, wanted = _marked(request)
    async for job in client.jobs(wanted):
        if not job.state.final:
            return Submission(job, taken_up=True)
    return Submission(await client.submit(marked), taken_up=False)


def known(client: Client, bug: Bug, before: datetime | None = None) -> Calibration | None:
    """Return what calibrations and trials of this bug as it is have measured together, if any.

    Whoever submitted them: their tag is true, so it was this kernel that ran these programs.
    With `before`, only jobs count that had ended by then: what is asked for in several
    requests has to rest on the same measurements in each.
    """
    return _pooled(list(islice(client.jobs(_calibrations(bug)), _MOST_POOLED)), bug, before)


async def known_async(
    client: AsyncClient, bug: Bug, before: datetime | None = None
) -> Calibration | None:
    """Return what calibrations and trials of this bug as it is have measured together."""
    jobs: list[JobView] = []
    async for job in client.jobs(_calibrations(bug)):
        jobs.append(job)
        if len(jobs) == _MOST_POOLED:
            break
    return _pooled(jobs, bug, before)


async def begun_async(client: AsyncClient, group: str) -> datetime | None:
    """Return when one's own group of jobs began; None if it has not yet."""
    try:
        return (await client.group(group)).created_at
    except Refused as error:
        if error.reason != "group_missing":
            raise
        return None


def _marked(request: JobRequest) -> tuple[JobRequest, JobFilter]:
    """Return the request with the tag of its steps, and the filter for jobs that have it."""
    mark = trusted_tags.request(request.steps)
    marked = request.model_copy(update={"tags": [*request.tags, mark]})
    return marked, JobFilter(tag=mark, mine=True)


def _calibrations(bug: Bug) -> JobFilter:
    # However the jobs ended: a trial has measured the bug before it tries the fix.
    return JobFilter(tag=bug.calibration_tag, limit=_MOST_POOLED)


def _pooled(jobs: Sequence[JobView], bug: Bug, before: datetime | None) -> Calibration | None:
    # Not those that go on: an interrupted trial is asked for again by what was known for it.
    ended = [job for job in jobs if job.state.final]
    earlier = [job for job in ended if before is None or _ended(job) < before]
    results = [reproduced(job.step(BEFORE)) for job in earlier]
    measured = [result for result in results if result is not None]
    return calibration.pooled(measured, bug.titles) if measured else None


def _ended(job: JobView) -> datetime:
    """Return when a finished job did its last work."""
    ends = [step.finished_at for step in job.steps if step.finished_at is not None]
    return max(ends, default=job.updated_at)
