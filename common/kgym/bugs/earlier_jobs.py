"""Reuse of earlier jobs: an identical unfinished job is continued, calibrations are pooled.

Functions named `…_async` take an `AsyncClient`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from kgym.api import trusted_tags
from kgym.api.jobs import JobFilter, JobRequest, JobView
from kgym.api.steps import ENGINE, Calibration
from kgym.bugs import calibration
from kgym.bugs.bug import BEFORE, REFERENCE, Bug, TrialOptions
from kgym.bugs.conclusion import reproduced
from kgym.client import AsyncClient, Client, Refused

# Only the newest calibrations of a bug are pooled.
_MOST_POOLED = 100


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and whether it was already there (`taken_up`)."""

    job: JobView
    taken_up: bool


def submit(client: Client, request: JobRequest) -> Submission:
    """Submit the job, or continue the caller's own unfinished job with the same steps."""
    # The tag is a hash of the steps. Only the caller's own jobs are looked at: another user could
    # abort theirs at any time.
    mark = trusted_tags.request(request.steps)
    marked = request.model_copy(update={"tags": [*request.tags, mark]})
    for job in client.jobs(JobFilter(tag=mark, mine=True)):
        if not job.state.final:
            return Submission(job, taken_up=True)
    return Submission(client.submit(marked), taken_up=False)


def known(client: Client, bug: Bug, before: datetime | None = None) -> Calibration | None:
    """Return the pooled measurements of calibrations and trials of this bug, if there are any.

    Jobs of all users count: the tag is verified, so it was this kernel that ran these programs.
    With `before`, only jobs that had ended by then count, so that several requests of one sweep
    rest on the same measurements.
    """
    return _pooled(list(islice(client.jobs(_calibrations(bug)), _MOST_POOLED)), bug, before)


async def known_async(
    client: AsyncClient, bug: Bug, before: datetime | None = None
) -> Calibration | None:
    """Return the pooled measurements of calibrations and trials of this bug, if there are any."""
    return _pooled(await _listed(client, _calibrations(bug)), bug, before)


def informed(client: Client, bug: Bug, trial: TrialOptions) -> TrialOptions:
    """Return the options of a trial with what earlier jobs have measured and learned of the bug."""
    known = [*islice(client.jobs(_calibrations(bug)), _MOST_POOLED)]
    compares = bug.compares(trial)
    references = [*islice(client.jobs(_references(bug)), _MOST_POOLED)] if compares else []
    return _informed(known, references, bug, trial, None)


async def informed_async(
    client: AsyncClient, bug: Bug, trial: TrialOptions, before: datetime | None
) -> TrialOptions:
    """Return the options of a trial with what jobs that ended by then have told of the bug."""
    known = await _listed(client, _calibrations(bug))
    references = await _listed(client, _references(bug)) if bug.compares(trial) else []
    return _informed(known, references, bug, trial, before)


async def begun_async(client: AsyncClient, group: str) -> datetime | None:
    """Return when the caller's group of jobs began; None if it does not exist yet."""
    try:
        return (await client.group(group)).created_at
    except Refused as error:
        if error.reason != "group_missing":
            raise
        return None


def _calibrations(bug: Bug) -> JobFilter:
    # Failed jobs count too: a trial has measured the bug before it tries the fix.
    return JobFilter(tag=bug.calibration_tag, limit=_MOST_POOLED)


def _references(bug: Bug) -> JobFilter:
    return JobFilter(tag=bug.reference_tag, limit=_MOST_POOLED)


async def _listed(client: AsyncClient, wanted: JobFilter) -> list[JobView]:
    jobs: list[JobView] = []
    async for job in client.jobs(wanted):
        jobs.append(job)
        if len(jobs) == _MOST_POOLED:
            break
    return jobs


def _informed(
    jobs: Sequence[JobView],
    references: Sequence[JobView],
    bug: Bug,
    trial: TrialOptions,
    before: datetime | None,
) -> TrialOptions:
    trial = replace(trial, known=_pooled(jobs, bug, before))
    if not trial.variants:
        return trial
    return replace(
        trial,
        learned=_learned(_earlier(jobs, before), BEFORE),
        reference=_learned(_earlier(references, before), REFERENCE),
    )


def _learned(jobs: Sequence[JobView], name: str) -> int | None:
    """Return the first job whose step of this name has learned variants that can be used."""
    for job in jobs:
        step = job.step(name)
        result = reproduced(step)
        learned = result.learned if result is not None else None
        # Without its artifacts, a step cannot be named as an input.
        if step is None or step.artifacts_gone_at is not None or learned is None:
            continue
        if learned.pace is not None and learned.engine == ENGINE:
            return job.id
    return None


def _earlier(jobs: Sequence[JobView], before: datetime | None) -> list[JobView]:
    # Running jobs do not count: an interrupted trial has to be submitted again with the same
    # calibration, or it would be another job.
    ended = [job for job in jobs if job.state.final]
    return [job for job in ended if before is None or _ended(job) < before]


def _pooled(jobs: Sequence[JobView], bug: Bug, before: datetime | None) -> Calibration | None:
    results = [reproduced(job.step(BEFORE)) for job in _earlier(jobs, before)]
    measured = [result for result in results if result is not None]
    return calibration.pooled(measured, bug.titles) if measured else None


def _ended(job: JobView) -> datetime:
    """Return when the last step of a finished job ended."""
    ends = [step.finished_at for step in job.steps if step.finished_at is not None]
    return max(ends, default=job.updated_at)
