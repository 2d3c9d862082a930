"""Jobs that are submitted once and followed to their end, through restarts on either side."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError

_OF_ONE_REQUEST = {400, 404, 409, 413, 422}
# How long a scheduler may be away: with a large database, it takes minutes to start.
PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 2.0
TRYING_AGAIN = f"trying again for {PATIENCE_SECONDS / 60:.0f} minutes"
_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 0.5
# Connecting times out sooner, so an event stream that lasted longer was open.
_SILENT_SECONDS = 60.0

T = TypeVar("T")
# Called with a job as soon as it exists.
Submitted = Callable[[JobView], Awaitable[None]]
# Called when a step of the job, given by its number, is queued or running.
Began = Callable[[JobView, int], None]
# Called on any sign of progress.
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
    """Return the job of this request once it has ended; submit it if the key has none.

    The database keeps a key once. So two concurrent callers get the same job, and so does a caller
    whose killed predecessor's request is still on its way.

    Args:
        client: The scheduler's client.
        request: The job.
        key: Its idempotency key.
        patience: Seconds for which the scheduler may be away, or may fail to answer for the job.
        restarts: Whether a job that had ended before is run again, once.
        submitted: Called with the job as soon as it exists.
        began: Called when a step is queued or running.

    Raises:
        Refused: The scheduler refused the request.
        InfrastructureError: The scheduler has not answered for too long.
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
    """Return the result of the work, which is retried on InfrastructureError.

    The error is raised after `patience` seconds without progress: a request that fails every time,
    such as the view of one damaged job, must not be retried for ever.
    """
    failing_from: float | None = None

    def heard() -> None:
        nonlocal failing_from
        failing_from = None

    while True:
        try:
            return await work(heard)
        except InfrastructureError as error:
            now = time.monotonic()
            if failing_from is None and patience == PATIENCE_SECONDS:
                _LOG.warning("%s; %s", error.message, TRYING_AGAIN)
            failing_from = failing_from or now
            if now - failing_from >= patience:
                raise
            await asyncio.sleep(PAUSE_SECONDS)


async def _to_its_end(submission: Coroutine[None, None, JobView]) -> JobView:
    """Return the job; let the submission finish even if this call is cancelled."""
    # Otherwise a caller that aborts its jobs when it is cancelled would miss this one.
    task = asyncio.create_task(submission)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # The request may already be on its way: give it half a second to be answered.
        await asyncio.wait([task], timeout=_ANSWER_SECONDS)
        task.cancel()
        raise


async def _restarted(client: AsyncClient, job_id: int) -> JobView:
    """Restart a job, unless another caller has just done so."""
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
    """Return the job once it has ended; `heard` is called on any event of it."""
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
        # A stream that was open for long is progress, even if no event came: a build may be quiet
        # for an hour.
        if time.monotonic() - following_from > max(patience, _SILENT_SECONDS):
            heard()
    return await client.job(job.id)


async def shown_again(client: AsyncClient, job_id: int, *, patience: float) -> JobView:
    """Return the job, run again if retention has removed its artifacts."""

    async def work(heard: Heard) -> JobView:
        job = await client.job(job_id)
        if any(step.artifacts_gone_at for step in job.steps):
            job = await client.restart(job_id, 0)
        return await followed(client, job, patience=patience, heard=heard)

    return await patiently(work, patience)


def concerns_one_request(error: Refused) -> bool:
    """Return whether a scheduler refused only this request, and may accept others."""
    return error.status in _OF_ONE_REQUEST
