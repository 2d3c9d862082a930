"""Reuse of earlier jobs: an identical unfinished job is continued, calibrations are pooled.

Functions named `…_async` take an `AsyncClient`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from kgym.api import trusted_tags
from kgym.api.jobs import JobFilter, JobRequest, JobView, StepView
from kgym.api.steps import ENGINE, SYZ_ENGINE, Calibration, ReproduceResult, StepKind
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


async def known_async(client: AsyncClient, bug: Bug) -> Calibration | None:
    """Return the pooled measurements of calibrations and trials of this bug, if there are any."""
    return _pooled(await _jobs(client, bug), bug, None)


def informed(client: Client, bug: Bug, trial: TrialOptions) -> TrialOptions:
    """Return the options of a trial with what earlier jobs have measured and learned of the bug."""
    return informed_by(list(islice(client.jobs(_calibrations(bug)), _MOST_POOLED)), bug, trial)


async def informed_async(
    client: AsyncClient, bug: Bug, trial: TrialOptions, before: datetime | None
) -> TrialOptions:
    """Return the options of a trial with what jobs ended by `before` have measured and learned."""
    return informed_by(await _jobs(client, bug), bug, trial, before)


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


async def _jobs(client: AsyncClient, bug: Bug) -> list[JobView]:
    jobs: list[JobView] = []
    async for job in client.jobs(_calibrations(bug)):
        jobs.append(job)
        if len(jobs) == _MOST_POOLED:
            break
    return jobs


def informed_by(
    jobs: Sequence[JobView], bug: Bug, trial: TrialOptions, before: datetime | None = None
) -> TrialOptions:
    """Return the options of a trial with what these jobs have measured and learned. Pure."""
    trial = replace(trial, known=_pooled(jobs, bug, before))
    if not trial.variants:
        return trial
    learned = (job.id for job in _earlier(jobs, before) if _has_learned(job, bug, trial))
    return replace(trial, learned=next(learned, None))


def _has_learned(job: JobView, bug: Bug, trial: TrialOptions) -> bool:
    """Return whether a job has learned the variants that the trial needs."""
    compares = bug.compares(trial)
    if compares and bug.reference_tag not in job.tags:
        return False
    names = [BEFORE, REFERENCE] if compares else [BEFORE]
    steps = _runs(job)[: len(names)]
    # Without its artifacts, a step cannot be named as an input.
    if [step.name for step in steps] != names or any(step.artifacts_gone_at for step in steps):
        return False
    results = [step.result for step in steps if isinstance(step.result, ReproduceResult)]
    learned = [result.reference or result.learned for result in results]
    usable = [each for each in learned if each is not None and each.pace and _serves(each.engine)]
    return len(usable) == len(names)


def _runs(job: JobView) -> list[StepView]:
    """Return a job's reproduce steps in order."""
    # A job's marks prove what its first steps do, whatever the names of its steps.
    return [step for step in job.steps if step.kind is StepKind.REPRODUCE]


def _serves(engine: str) -> bool:
    # The step itself checks whether that is the mutator of its own syzkaller.
    return engine == ENGINE or engine.startswith(SYZ_ENGINE)


def _earlier(jobs: Sequence[JobView], before: datetime | None) -> list[JobView]:
    # Running jobs do not count: an interrupted trial has to be submitted again with the same
    # calibration, or it would be another job.
    ended = [job for job in jobs if job.state.final]
    return [job for job in ended if before is None or _ended(job) < before]


def _pooled(jobs: Sequence[JobView], bug: Bug, before: datetime | None) -> Calibration | None:
    results = [reproduced(step) for job in _earlier(jobs, before) for step in _runs(job)[:1]]
    measured = [result for result in results if result is not None]
    return calibration.pooled(measured, bug.titles) if measured else None


def _ended(job: JobView) -> datetime:
    """Return when the last step of a finished job ended."""
    ends = [step.finished_at for step in job.steps if step.finished_at is not None]
    return max(ends, default=job.updated_at)
