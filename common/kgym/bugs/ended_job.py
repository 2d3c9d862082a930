"""A job that is submitted once and followed to its end, whoever goes away meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError

_OF_ONE_REQUEST = {400, 404, 409, 413, 422}
_PAUSE_SECONDS = 2.0
_ANSWER_SECONDS = 0.5
# An event stream that has lasted longer was open: connecting is given up sooner.
_SILENT_SECONDS = 60.0

T = TypeVar("T")
# Hears of a job as soon as there is one.
Submitted = Callable[[JobView], Awaitable[None]]
# Hears that a step of the job, by its number, is queued or runs.
Began = Callable[[JobView, int], None]
# Hears that something was heard of the work that is under way.
Heard = Callable[[], None]


async def ended(
    client: AsyncClient,
    request: JobRequest,
    key: str,
    *,
    patience: float,
    restarts: Callable[[JobView], bool] = lambda job: False,
    submitted: Submitted | None = None,
    began: Began = lambda job, step: None,
) -> JobView:
    """Return the job of this request once it has ended; it is submitted if the key has none.

    The database keeps a key once, also for two callers at the same time, and where the last
    request of one that was killed is still on its way.

    Args:
        client: Of the scheduler.
        request: The job.
        key: Under which it is submitted.
        patience: Seconds for which the scheduler may be away, or may fail to answer for the job.
        restarts: Whether a job that had ended before is run again, once.
        submitted: Hears of the job as soon as there is one.
        began: Hears of its steps.

    Raises:
        Refused: The request is wrong, or nothing is to be asked of this scheduler.
        InfrastructureError: Nobody has answered for too long.
    """
    new = True

    async def submit() -> JobView:
        job = await client.submit(request, key)
        if submitted is not None:
            await submitted(job)
        return job

    async def work(heard: Heard) -> JobView:
        nonlocal new
        job = await _to_its_end(submit())
        if new and job.state.final and restarts(job):
            new = False
            job = await _restarted(client, job.id)
        return await followed(client, job, patience=patience, began=began, heard=heard)

    return await patiently(work, patience)


async def patiently(work: Callable[[Heard], Awaitable[T]], patience: float) -> T:
    """Do the work, again where nobody answers, or cannot just now; return what it comes to.

    Raises InfrastructureError when it has not got on for `patience` seconds: what fails each
    time, such as the view of one job, is not tried for ever.
    """
    failing_from: float | None = None

    def heard() -> None:
        nonlocal failing_from
        failing_from = None

    while True:
        try:
            return await work(heard)
        except InfrastructureError:
            now = time.monotonic()
            failing_from = failing_from or now
            if now - failing_from >= patience:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)


async def _to_its_end(submission: Coroutine[None, None, JobView]) -> JobView:
    """Return the job; if this is cancelled meanwhile, `submitted` hears of it all the same."""
    task = asyncio.create_task(submission)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_ANSWER_SECONDS)
        task.cancel()
        raise


async def _restarted(client: AsyncClient, job_id: int) -> JobView:
    """Run a job again, which another caller may have done just now."""
    try:
        return await client.restart(job_id)
    except Refused as error:
        if error.reason != "job_unfinished":
            raise
        return await client.job(job_id)


async def followed(
    client: AsyncClient,
    job: JobView,
    *,
    patience: float,
    began: Began = lambda job, step: None,
    heard: Heard = lambda: None,
) -> JobView:
    """Return the job once it has ended; `heard` is called when something was heard of it."""
    if job.state.final:
        return job
    begun = [step.number for step in job.steps if step.state is not State.PENDING]
    began(job, max(begun, default=0))
    following_from = time.monotonic()
    try:
        async for event in client.events(job.id, job.last_event or 0):
            heard()
            if event.kind == "state" and event.data["state"] in {State.QUEUED, State.RUNNING}:
                began(job, event.step or 0)
    finally:
        if time.monotonic() - following_from > max(patience, _SILENT_SECONDS):
            heard()
    return await client.job(job.id)


async def shown_again(client: AsyncClient, job_id: int, *, patience: float) -> JobView:
    """Return the job once it has run again, if retention has removed what it had left."""

    async def work(heard: Heard) -> JobView:
        job = await client.job(job_id)
        if any(step.artifacts_gone_at for step in job.steps):
            job = await client.restart(job_id, 0)
        return await followed(client, job, patience=patience, heard=heard)

    return await patiently(work, patience)


def concerns_one_request(error: Refused) -> bool:
    """Tell whether a scheduler refused this request only, and may take others."""
    return error.status in _OF_ONE_REQUEST
