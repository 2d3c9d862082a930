"""The REST interface, /v1."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import (
    APIRouter,
    Body,
    Depends,
    FastAPI,
    Header,
    Path,
    Query,
    Request,
    Response,
)
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, TypeAdapter
from sse_starlette import EventSourceResponse, ServerSentEvent

from kgym.errors import InfrastructureError
from kgym.jobs import (
    Artifact,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    QueueView,
    Tags,
    WorkerView,
)
from kgym_scheduler import example, ranges, worker_api
from kgym_scheduler.auth import Door, caller_of, needs
from kgym_scheduler.core import Scheduler
from kgym_scheduler.figures import unfinished
from kgym_scheduler.limits import BodyLimit, Limits, Quota, Rates, Streams
from kgym_scheduler.metrics import MEDIA_TYPE, Counted, Metrics
from kgym_scheduler.problems import Problem, documented, install, problem
from kgym_scheduler.refusals import Gone
from kgym_scheduler.retention import gone_since
from kgym_scheduler.strict import StrictRoute, known_request
from kgym_scheduler.tokens import Scope, Tokens

PING_SECONDS = 10
"""How often a quiet event stream says that it lives."""

JobId = Annotated[int, Path(ge=1, lt=1 << 63, description="of the job, from 1")]
StepNumber = Annotated[int, Path(ge=0, lt=100, description="of the step in its job, from 0")]
Attempt = Annotated[int | None, Query(ge=1, lt=1 << 31)]
StepQuery = Annotated[int | None, Query(ge=0, lt=100)]
WorkerId = Annotated[str, Path(max_length=200, pattern=r"^[\w.:+-]+$")]
ArtifactName = Annotated[str, Path(max_length=255)]


_free = APIRouter(prefix="/v1", route_class=StrictRoute)
_read = APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=[needs(Scope.READ)])
_submit = APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=[needs(Scope.SUBMIT)])
_admin = APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=[needs(Scope.ADMIN)])
_ARTIFACTS = TypeAdapter(list[Artifact])
_WORKERS = TypeAdapter(list[WorkerView])
_QUEUES = TypeAdapter(list[QueueView])


def _scheduler(request: Request) -> Scheduler:
    scheduler: Scheduler = request.app.state.scheduler
    return scheduler


Core = Annotated[Scheduler, Depends(_scheduler)]


def create_app(scheduler: Scheduler, limits: Limits | None = None) -> FastAPI:
    """Return the application that serves this scheduler, which others start and stop."""
    limits = limits or Limits()
    metrics = Metrics(scheduler)
    scheduler.observers.append(metrics.ended)
    tokens = Tokens(scheduler.database)
    app = _Api(
        title="kGymSuite scheduler",
        version="1",
        description="Jobs are pipelines of steps: build a Linux kernel, reproduce a crash on it. "
        "Every error is a problem document (RFC 9457), `application/problem+json`.",
        dependencies=[Depends(known_request)],
        docs_url=None,
        redoc_url=None,
    )
    app.state.scheduler = scheduler
    app.state.metrics = metrics
    app.state.tokens = tokens
    app.state.streams = Streams(limits)
    app.state.quota = Quota(limits, partial(unfinished, scheduler.database))
    app.add_middleware(BodyLimit)
    app.add_middleware(Door, tokens=tokens, rates=Rates(limits))
    app.add_middleware(Counted, metrics=metrics)
    install(app)
    for router in (_free, _read, _submit, _admin, worker_api.router):
        app.include_router(router)
    app.add_api_route("/healthz", healthz, include_in_schema=False)
    app.add_api_route("/readyz", readyz, include_in_schema=False)
    app.add_api_route(
        "/metrics", _metrics, dependencies=[needs(Scope.READ)], include_in_schema=False
    )
    app.add_api_route("/", _to_docs, include_in_schema=False)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    app.mount("/swagger", StaticFiles(packages=[("fastapi_offline", "static")]))
    return app


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the problem document among its schemas."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
            )
            template = "#/components/schemas/{model}"
            model = Problem.model_json_schema(ref_template=template)
            schema["components"]["schemas"] |= {**model.pop("$defs"), "Problem": model}
            schema["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "kgym_ID_SECRET"}
            }
            schema["security"] = [{}, {"token": []}]
            self.openapi_schema = schema
        return self.openapi_schema


async def _docs() -> HTMLResponse:
    """Show the interface; the page's parts come from a package, not from the Internet."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="kGymSuite scheduler",
        swagger_js_url="/swagger/swagger-ui-bundle.js",
        swagger_css_url="/swagger/swagger-ui.css",
        swagger_favicon_url="/swagger/favicon.png",
    )


async def _metrics(request: Request) -> Response:
    """Show the metrics, as Prometheus reads them."""
    metrics: Metrics = request.app.state.metrics
    return Response(await metrics.text(), media_type=MEDIA_TYPE)


async def _to_docs() -> RedirectResponse:
    return RedirectResponse("/docs")


# --- jobs ---------------------------------------------------------------------------------


@_submit.post(
    "/jobs",
    summary="Submit a job",
    tags=["jobs"],
    status_code=201,
    response_model=JobView,
    responses=documented(
        413,
        415,
        answers={200: {"model": JobView, "description": "The job that this key was used for"}},
    ),
)
async def submit(
    http: Request,
    scheduler: Core,
    request: Annotated[
        JobRequest,
        Body(
            openapi_examples={
                "fix": {"summary": "A bug before and after its fix", "value": example.JOB}
            }
        ),
    ],
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            pattern="^[!-~]+$",
            description="A request that is repeated with the same key makes no second job",
        ),
    ] = None,
) -> Response:
    """Queue the steps, in order. A step begins when the one before it has succeeded."""
    submitter = caller_of(http).name
    await http.app.state.quota.take(submitter)
    job, new = await scheduler.submit(request, idempotency_key, submitter)
    return _json(job, 201 if new else 200, {"Location": f"/v1/jobs/{job.id}"})


@_read.get(
    "/jobs", summary="List jobs", tags=["jobs"], response_model=JobPage, responses=documented()
)
async def list_jobs(scheduler: Core, wanted: Annotated[JobFilter, Query()]) -> Response:
    """Show jobs, newest first. Give `next` as `cursor` to see the page that follows."""
    return _json(await scheduler.jobs(wanted))


@_read.get(
    "/jobs/{job_id}",
    summary="Show a job",
    tags=["jobs"],
    response_model=JobView,
    responses=documented(404),
)
async def show_job(scheduler: Core, job_id: JobId) -> Response:
    """Show the job as it stands, with what its steps were asked and what they answered."""
    return _json(await scheduler.job(job_id))


@_submit.post(
    "/jobs/{job_id}/abort",
    summary="Abort a job",
    tags=["jobs"],
    response_model=JobView,
    responses=documented(404, 409),
)
async def abort(scheduler: Core, job_id: JobId) -> Response:
    """End all unfinished steps now. A second abort changes nothing; a finished job gives 409."""
    return _json(await scheduler.abort(job_id))


@_submit.post(
    "/jobs/{job_id}/restart",
    summary="Restart a job from a step",
    tags=["jobs"],
    response_model=JobView,
    responses=documented(404, 409),
)
async def restart(scheduler: Core, job_id: JobId, from_step: StepQuery = None) -> Response:
    """Run `from_step` and all after it again; by default, from the first that did not succeed."""
    return _json(await scheduler.restart(job_id, from_step))


@_submit.put(
    "/jobs/{job_id}/tags",
    summary="Replace a job's tags",
    tags=["jobs"],
    response_model=JobView,
    responses=documented(404, 413, 415),
)
async def put_tags(
    scheduler: Core, job_id: JobId, tags: Annotated[Tags, Body(examples=[["mine", "night:3"]])]
) -> Response:
    """Give the job these tags, in place of those it had."""
    return _json(await scheduler.tag(job_id, tags))


# --- what a job says ----------------------------------------------------------------------


@_read.get(
    "/jobs/{job_id}/log",
    summary="Read a job's log",
    tags=["output"],
    response_class=StreamingResponse,
    responses=documented(
        404, answers={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    ),
)
async def log(
    scheduler: Core, job_id: JobId, step: StepQuery = None, attempt: Attempt = None
) -> StreamingResponse:
    """Return what the steps have logged so far, or one of them, or one attempt."""
    await scheduler.state(job_id)
    return StreamingResponse(scheduler.log(job_id, step, attempt), media_type="text/plain")


_EVENT = {
    "description": "One event of the stream, its fields as an object",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "what `Last-Event-ID` takes"},
        "event": {"enum": ["state", "progress", "log", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}


@_read.get(
    "/jobs/{job_id}/events",
    summary="Follow a job",
    tags=["output"],
    response_class=EventSourceResponse,
    responses=documented(
        404,
        answers={
            200: {
                "description": "Events of the kinds `state`, `progress` and `log`, each a "
                "JobEvent; then `end`, when the job has finished",
                "content": {"text/event-stream": {"schema": _EVENT}},
            }
        },
    ),
)
async def events(
    request: Request,
    scheduler: Core,
    job_id: JobId,
    last_event_id: Annotated[
        int,
        Header(
            ge=0, lt=1 << 63, description="Go on after this event, as browsers do by themselves"
        ),
    ] = 0,
) -> EventSourceResponse:
    """Send what has happened to the job, then what happens, until it has finished."""
    caller, streams = caller_of(request).name, request.app.state.streams
    streams.check(caller)
    await scheduler.state(job_id)

    async def counted() -> AsyncIterator[ServerSentEvent]:
        with streams.opened(caller):
            async for event in _event_stream(scheduler, job_id, last_event_id):
                yield event

    return EventSourceResponse(counted(), ping=PING_SECONDS, sep="\n")


async def _event_stream(
    scheduler: Scheduler, job_id: int, last: int
) -> AsyncIterator[ServerSentEvent]:
    try:
        async for event in scheduler.events(job_id, last):
            yield ServerSentEvent(
                event.model_dump_json(), event=event.kind, id=str(event.id), sep="\n"
            )
    except InfrastructureError:
        return  # without `end`, so that clients come back
    yield ServerSentEvent("{}", event="end", sep="\n")


# --- artifacts ----------------------------------------------------------------------------


@_read.get(
    "/jobs/{job_id}/steps/{number}/artifacts",
    summary="List a step's artifacts",
    tags=["output"],
    response_model=list[Artifact],
    responses=documented(404),
)
async def list_artifacts(scheduler: Core, job_id: JobId, number: StepNumber) -> Response:
    """Show the files that the step's last attempt left."""
    return _json_list(_ARTIFACTS, await scheduler.artifacts(job_id, number))


@_read.head("/jobs/{job_id}/steps/{number}/artifacts/{name}", include_in_schema=False)
@_read.get(
    "/jobs/{job_id}/steps/{number}/artifacts/{name}",
    summary="Download an artifact",
    tags=["output"],
    response_class=StreamingResponse,
    responses=documented(
        404,
        410,
        416,
        answers={
            200: {"content": {"application/octet-stream": {}}},
            206: {
                "content": {"application/octet-stream": {}},
                "description": "The range asked for",
            },
        },
    ),
)
async def artifact(
    request: Request,
    scheduler: Core,
    job_id: JobId,
    number: StepNumber,
    name: ArtifactName,
    range_: Annotated[
        str | None, Header(alias="Range", description="One range of bytes (RFC 9110)")
    ] = None,
    if_range: Annotated[str | None, Header(description="An ETag: the range only of this")] = None,
) -> Response:
    """Send the file. Its ETag is its SHA-256."""
    found = await scheduler.artifact(job_id, number, name)
    if gone := await gone_since(scheduler.database, job_id, number):
        raise Gone(
            "artifact_gone",
            f"{name} was removed on {gone:%Y-%m-%d}, for its age or to save space; "
            f"restart job {job_id} from step {number} to make it again",
            gone_at=gone.isoformat(),
        )
    etag = f'"{found.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    try:
        part = ranges.parse(range_ if if_range in {None, etag} else None, found.size)
    except ranges.Unsatisfiable:
        detail = f"{name} has {found.size} bytes; {range_!r} asks for none of them"
        size = {"Content-Range": f"bytes */{found.size}"}
        return problem(request, 416, "range_not_satisfiable", detail, size)
    if request.method == "HEAD":
        part = None
    start, stop = (part.start, part.stop) if part else (0, found.size)
    headers["Content-Length"] = str(stop - start)
    if part:
        headers["Content-Range"] = part.content_range
    if request.method == "HEAD":
        return Response(None, 200, headers, "application/octet-stream")
    body = scheduler.storage.read(found.key, start, stop)
    first = await anext(body, b"")  # an error has to come before the status line
    return StreamingResponse(
        _chain(first, body), 206 if part else 200, headers, "application/octet-stream"
    )


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


# --- the scheduler itself -----------------------------------------------------------------


@_read.get(
    "/workers",
    summary="Show the workers",
    tags=["scheduler"],
    response_model=list[WorkerView],
    responses=documented(),
)
async def workers(scheduler: Core) -> Response:
    """Show the workers, what they can do, when they were heard of, and what they run."""
    return _json_list(_WORKERS, await scheduler.workers())


@_admin.post(
    "/workers/{worker_id}/drain",
    summary="Drain a worker",
    tags=["scheduler"],
    response_model=WorkerView,
    responses=documented(404),
)
async def drain(scheduler: Core, worker_id: WorkerId) -> Response:
    """Let the worker finish what it runs, take no more, and end."""
    return _json(await scheduler.drain(worker_id))


@_read.get(
    "/queues",
    summary="Show the queues",
    tags=["scheduler"],
    response_model=list[QueueView],
    responses=documented(),
)
async def queues(scheduler: Core) -> Response:
    """Show, by step kind, how many steps wait and run, and how long the oldest has waited."""
    return _json_list(_QUEUES, await scheduler.queues())


@_free.get(
    "/healthz",
    summary="Whether the process lives",
    tags=["scheduler"],
    responses=documented(),
)
async def healthz() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}


@_free.get(
    "/readyz",
    summary="Whether requests can be served",
    tags=["scheduler"],
    responses=documented(),
)
async def readyz(scheduler: Core) -> dict[str, str]:
    """Ask the database and the bus; a problem lists each, and what is the matter with it."""
    await scheduler.ready()
    return {"status": "ready"}


def _json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the model as it is: it has been validated once."""
    return Response(model.model_dump_json(), status, headers, "application/json")


def _json_list(adapter: TypeAdapter[list[Any]], models: list[Any]) -> Response:
    return Response(adapter.dump_json(models), media_type="application/json")
