"""Jobs, their logs and events: /v1/jobs."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Body, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from kgym.api.jobs import (
    DIGITS,
    JobConditions,
    JobCount,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    Tags,
)
from kgym.errors import InfrastructureError
from kgym.web.event_stream import EventStream, LastEventId
from kgym.web.routing import as_json, described, key_header, router
from kgym.web.scopes import Scope
from kgym_scheduler.api import example_job
from kgym_scheduler.routing import Core, JobId, StepQuery, admit, caller_of
from kgym_scheduler.scheduler import Scheduler

Attempt = Annotated[Annotated[int, Field(ge=1, lt=1 << 31), DIGITS] | None, Query()]

readers = router(Scope.READ)
submitters = router(Scope.SUBMIT, "jobs")


# --- jobs ---------------------------------------------------------------------------------


@submitters.post(
    "/jobs",
    status_code=201,
    **described(
        "Submit a job",
        JobView,
        413,
        415,
        answers={
            200: {"model": JobView, "description": "The job of an earlier request with this key"}
        },
    ),
)
async def submit(
    http: Request,
    scheduler: Core,
    request: Annotated[
        JobRequest,
        Body(
            openapi_examples={
                "fix": {"summary": "A bug before and after its fix", "value": example_job.JOB}
            }
        ),
    ],
    idempotency_key: Annotated[
        str | None, key_header("A repeated request with the same key submits no second job")
    ] = None,
) -> Response:
    """Submit a job. Each step begins when the one before it has succeeded."""
    caller = await admit(http, [request])
    job, new = await scheduler.submit(request, idempotency_key, caller.name)
    return as_json(job, 201 if new else 200, {"Location": f"/v1/jobs/{job.id}"})


@readers.get("/jobs", tags=["jobs"], **described("List jobs", JobPage))
async def list_jobs(
    http: Request, scheduler: Core, conditions: Annotated[JobFilter, Query()]
) -> Response:
    """List jobs, newest first. Pass `next` as `cursor` to get the next page."""
    return as_json(await scheduler.jobs(conditions, caller_of(http).name))


@readers.get("/jobs/count", tags=["jobs"], **described("Count jobs", JobCount))
async def count(
    http: Request, scheduler: Core, conditions: Annotated[JobConditions, Query()]
) -> Response:
    """Count the matching jobs, up to 10,000."""
    return as_json(await scheduler.store.count(conditions, caller_of(http).name))


@readers.get("/jobs/{job_id}", tags=["jobs"], **described("Show a job", JobView, 404))
async def show_job(scheduler: Core, job_id: JobId) -> Response:
    """Return the job with the specs and results of its steps."""
    return as_json(await scheduler.job(job_id))


@submitters.post("/jobs/{job_id}/abort", **described("Abort a job", JobView, 404, 409))
async def abort(http: Request, scheduler: Core, job_id: JobId) -> Response:
    """Abort all unfinished steps. A second abort changes nothing; a finished job gives 409.

    Only the job's submitter and `admin` may do this, as with `restart` and `tags`.
    """
    return as_json(await scheduler.abort(job_id, caller_of(http).owner))


@submitters.post(
    "/jobs/{job_id}/restart", **described("Restart a job from a step", JobView, 404, 409)
)
async def restart(
    http: Request, scheduler: Core, job_id: JobId, from_step: StepQuery = None
) -> Response:
    """Restart from `from_step`, by default the first step that did not succeed."""
    return as_json(await scheduler.restart(job_id, from_step, caller_of(http).owner))


@submitters.put("/jobs/{job_id}/tags", **described("Replace a job's tags", JobView, 404, 413, 415))
async def put_tags(
    http: Request,
    scheduler: Core,
    job_id: JobId,
    tags: Annotated[Tags, Body(examples=[["mine", "night:3"]])],
) -> Response:
    """Replace the job's tags.

    `request=…` and `calibration=…` describe its steps: they stay, and none can be added.
    """
    return as_json(await scheduler.tag(job_id, tags, caller_of(http).owner))


# --- logs and events ----------------------------------------------------------------------


@readers.get(
    "/jobs/{job_id}/log",
    tags=["output"],
    **described(
        "Read a job's log",
        StreamingResponse,
        404,
        answers={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    ),
)
async def log(
    scheduler: Core,
    job_id: JobId,
    step: StepQuery = None,
    attempt: Attempt = None,
    after: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 63), DIGITS] | None,
        Query(
            description="return only a part of the log after this event; the header "
            "`Kgym-Last-Event` is the event to go on from, unchanged if there is no more"
        ),
    ] = None,
) -> Response:
    """Return the log so far of all steps, of one step, or of one attempt."""
    if step is None:
        await scheduler.store.state(job_id)
    else:  # 404 if the step does not exist, instead of an empty log
        await scheduler.store.artifacts(job_id, step)
    if after is not None:
        text, last = await scheduler.log_after(job_id, after, step, attempt)
        headers = {"Kgym-Last-Event": str(last)}
        return Response(text, media_type="text/plain", headers=headers)
    return StreamingResponse(scheduler.log(job_id, step, attempt), media_type="text/plain")


_EVENT = {
    "description": "One event of the stream, its fields as an object",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "for `Last-Event-ID`"},
        "event": {"enum": ["state", "progress", "log", "end"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/JobEvent"},
                    {"type": "object", "maxProperties": 0, "description": "of `end`"},
                ]
            },
        },
    },
    "required": ["event", "data"],
}


@readers.get(
    "/jobs/{job_id}/events",
    tags=["output"],
    **described(
        "Follow a job",
        EventStream,
        404,
        answers={
            200: {
                "description": "Events of the kinds `state`, `progress` and `log`, each a "
                "JobEvent; then `end`, with `{}`, when the job has finished",
                "content": {"text/event-stream": {"schema": _EVENT}},
            }
        },
    ),
)
async def events(
    request: Request, scheduler: Core, job_id: JobId, last_event_id: LastEventId = 0
) -> EventStream:
    """Stream the job's past and future events until it has finished."""
    with contextlib.ExitStack() as slot:
        slot.enter_context(request.app.streams.opened(caller_of(request).name))
        # Before the stream: a missing job has to be a 404, not a stream that ends at once.
        await scheduler.followers.check(job_id)
        events = _event_stream(scheduler, job_id, last_event_id)
        return EventStream(events, slot.pop_all())


async def _event_stream(scheduler: Scheduler, job_id: int, last: int) -> AsyncIterator[bytes]:
    try:
        async for events in scheduler.follow(job_id, last):
            yield b"".join(event.text for event in events)
    except InfrastructureError:
        return  # without `end`, so that clients reconnect
    yield b"event: end\ndata: {}\n\n"
