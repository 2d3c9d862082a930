"""Many jobs in one request: /v1/jobs/bulk, /v1/jobs/abort, /v1/jobs/restart."""

from typing import Annotated

from fastapi import Body, Request, Response

from kgym.api.bulk import Aborted, AbortRequest, JobRequests, Restarted, RestartRequest, Submitted
from kgym.web.routing import as_json, described, key_header, router
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute
from kgym_scheduler.api import example_job
from kgym_scheduler.routing import Core, admit, caller_of


class _Route(StrictRoute):
    values = 300_000  # a thousand jobs of several steps


submitters = router(Scope.SUBMIT, "jobs", kind=_Route)


@submitters.post(
    "/jobs/bulk",
    status_code=201,
    **described(
        "Submit many jobs",
        Submitted,
        413,
        415,
        answers={200: {"model": Submitted, "description": "An earlier call submitted all"}},
    ),
)
async def submit_all(
    http: Request,
    scheduler: Core,
    request: Annotated[
        JobRequests,
        Body(
            openapi_examples={"one": {"summary": "One job", "value": {"jobs": [example_job.JOB]}}}
        ),
    ],
    idempotency_key: Annotated[
        str | None, key_header("For the whole call: job number N, from 0, has the key `KEY:N`", 190)
    ] = None,
) -> Response:
    """Add all jobs in one transaction, or none: the first invalid one fails the call."""
    caller = await admit(http, request.jobs)
    submitted = await scheduler.submit_all(request.jobs, idempotency_key, caller.name)
    return as_json(submitted, 201 if submitted.created else 200)


@submitters.post("/jobs/abort", **described("Abort many jobs", Aborted, 409, 413, 415))
async def abort_all(
    http: Request, scheduler: Core, request: Annotated[AbortRequest, Body()]
) -> Response:
    """Abort these jobs, or the first thousand that match the filter.

    If one of them belongs to another submitter, nothing is aborted, except by `admin`.
    """
    caller = caller_of(http)
    return as_json(await scheduler.abort_all(request, caller.name, caller.owner))


@submitters.post("/jobs/restart", **described("Restart many jobs", Restarted, 409, 413, 415))
async def restart_all(
    http: Request, scheduler: Core, request: Annotated[RestartRequest, Body()]
) -> Response:
    """Restart finished jobs: the newest thousand that match the filter.

    If their number is not `expected`, nothing is done. Each restarts from its first step that has
    not succeeded.
    """
    caller = caller_of(http)
    return as_json(await scheduler.restart_all(request, caller.name, caller.owner))
