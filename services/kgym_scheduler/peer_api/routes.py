"""The paths of kGymSuite's interface: `/newJob`, `/jobs`, `/tags`, `/search`, `/system`.

Its clients know no tokens. If this platform needs one, they send it as all clients do.
"""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from pydantic_core import to_json

from kgym.api import key_value_tags as tags
from kgym.api.jobs import DIGITS, JobFilter, JobView
from kgym.errors import Conflict, NotFound, UserError
from kgym.web.access import needs
from kgym.web.problems import documented
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute
from kgym_scheduler.database import job_lists
from kgym_scheduler.peer_api import answers
from kgym_scheduler.peer_api.requests import JobsFilter, NewJob, PageFilter, TagFilter
from kgym_scheduler.peer_api.submission import ignored, request_of
from kgym_scheduler.routing import Core, admit, caller_of
from kgym_scheduler.scheduler import Scheduler

# Jobs that are read at once.
AT_ONCE = 200
NAME = "kGymSuite"

Named = Annotated[
    str, Path(pattern=r"^[0-9a-f]{8}$", max_length=8, description="of the job, in hex digits")
]
Key = Annotated[str, Path(min_length=1, max_length=90, description="of the tag")]
_TAGS: Any = {"tags": ["kGymSuite's interface"]}


def _router(scope: Scope) -> APIRouter:
    return APIRouter(route_class=StrictRoute, dependencies=[needs(scope)], **_TAGS)


readers, submitters = _router(Scope.READ), _router(Scope.SUBMIT)


def _scheduler(http: Request) -> Scheduler:
    scheduler: Scheduler = http.app.state.scheduler
    return scheduler


def _json(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


def _page(shown: Sequence[object], part: PageFilter, total: int) -> Response:
    following = part.skip + len(shown)
    page = {"page": shown, "pageSize": len(shown), "offsetNextPage": following, "total": total}
    return _json(page)


# --- jobs -----------------------------------------------------------------------------------


@submitters.post("/newJob", summary="Submit a job", responses=documented(413, 415))
async def new_job(http: Request, scheduler: Core, job: Annotated[NewJob, Body()]) -> Response:
    """Submit a job: `kbuilder` is a build step, `kvmmanager` a reproduce step."""
    request = await request_of(job, scheduler.job)
    caller = await admit(http, [request])
    view, _ = await scheduler.submit(request, None, caller.name, ignored(job))
    return JSONResponse(answers.job_id(view.id))


@readers.get("/jobs", summary="List jobs", responses=documented())
async def list_jobs(http: Request, part: Annotated[JobsFilter, Query()]) -> Response:
    """List jobs, the newest first, at most 4,000."""
    scheduler, by_change = _scheduler(http), part.sortBy == "modifiedTime"
    async with scheduler.store.database.read() as connection:
        ids, total = await job_lists.newest_jobs(connection, by_change, part.skip, part.pageSize)
    return _page(list(map(answers.digest, await _views(http, ids))), part, total)


@readers.get("/jobs/{job_id}", summary="Show a job", responses=documented(404))
async def show_job(http: Request, job_id: Named) -> Response:
    """Return a job with its stages; `kgym` has its conclusion in this platform's terms."""
    return _json(answers.context(await _job(http, job_id)))


@submitters.post("/jobs/{job_id}/abort", summary="Abort a job", responses=documented(404))
async def abort(http: Request, job_id: Named) -> Response:
    """Abort the job; a finished one stays unchanged."""
    try:
        await _scheduler(http).abort((await _job(http, job_id)).id, caller_of(http).owner)
    except Conflict as error:
        if error.reason != "job_finished":
            raise
    return _json(None)


@submitters.post("/jobs/{job_id}/restart", summary="Restart a job", responses=documented(404, 409))
async def restart(
    http: Request,
    job_id: Named,
    restartFrom: Annotated[  # noqa: N803 - theirs
        Annotated[int, Field(ge=-1, lt=100), DIGITS], Query(description="-1: the last stage")
    ] = -1,
) -> Response:
    """Restart a finished job from a stage."""
    job = await _job(http, job_id)
    step = len(job.steps) - 1 if restartFrom == -1 else restartFrom
    if step >= len(job.steps):
        raise UserError("peer_job", f"job {job_id} has {len(job.steps)} stages, no stage {step}")
    await _scheduler(http).restart(job.id, step, caller_of(http).owner)
    return _json(None)


@readers.get("/jobs/{job_id}/log", summary="Read a job's log", responses=documented(404))
async def job_log(http: Request, job_id: Named, part: Annotated[PageFilter, Query()]) -> Response:
    """Return the log of the job's stages, latest first."""
    return await _logs(http, (await _job(http, job_id)).id, part)


# --- tags -----------------------------------------------------------------------------------


@readers.get("/jobs/{job_id}/tags", summary="Show a job's tags", responses=documented(404))
async def job_tags(http: Request, job_id: Named) -> Response:
    """Return the tags that have a key and a value."""
    return _json(tags.read((await _job(http, job_id)).tags))


@readers.get("/jobs/{job_id}/tags/{tag_key}", summary="Show a tag", responses=documented(404))
async def job_tag(http: Request, job_id: Named, tag_key: Key) -> Response:
    """Return the value of a tag."""
    own = tags.read((await _job(http, job_id)).tags)
    if tag_key not in own:
        raise NotFound("tag_not_found", f"job {job_id} has no tag {tag_key!r}")
    return _json(own[tag_key])


@submitters.post("/jobs/{job_id}/tags/{tag_key}", summary="Set a tag", responses=documented(404))
async def set_tag(
    http: Request,
    job_id: Named,
    tag_key: Key,
    tagValue: Annotated[str, Query(max_length=90)],  # noqa: N803 - theirs
) -> Response:
    """Set the value of a tag; the others stay."""
    job = await _job(http, job_id)
    others = [tag for tag in job.tags if tag_key not in tags.read([tag])]
    new = [*others, tags.written(tag_key, tagValue)]
    await _scheduler(http).tag(job.id, new, caller_of(http).owner)
    return _json(None)


@readers.get("/tags", summary="List the keys of tags", responses=documented())
async def list_tags(http: Request, part: Annotated[PageFilter, Query()]) -> Response:
    """List the keys of tags of the newest 4,000 jobs."""
    async with _scheduler(http).store.database.read() as connection:
        jobs = await job_lists.newest_tags(connection)
    keys = sorted({key for _, own in jobs for key in tags.read(own)})
    return _page(keys[part.skip :][: part.pageSize], part, len(keys))


@readers.get("/search", summary="Find jobs by a tag", responses=documented())
async def search(http: Request, part: Annotated[TagFilter, Query()]) -> Response:
    """List jobs with a tag, latest first; without its value, of the newest 4,000 jobs."""
    async with _scheduler(http).store.database.read() as connection:
        if part.tagKey and part.tagValue is not None:
            tag = tags.written(part.tagKey, part.tagValue)
            ids, total = await job_lists.tagged_jobs(connection, tag, part.skip, part.pageSize)
            shown = [[answers.job_id(number), part.tagKey, part.tagValue] for number in ids]
            return _page(shown, part, total)
        jobs = await job_lists.newest_tags(connection)
    matches: Callable[[str, str], bool] = lambda key, value: (  # noqa: E731 - a condition
        part.tagKey in {"", key} and part.tagValue in {None, value}
    )
    rows = [
        [answers.job_id(number), key, value]
        for number, own in jobs
        for key, value in tags.read(own).items()
        if matches(key, value)
    ]
    return _page(rows[part.skip :][: part.pageSize], part, len(rows))


# --- the system -----------------------------------------------------------------------------


@readers.get("/system/info", summary="Show the deployment", responses=documented())
async def info() -> Response:
    """Return the deployment's name."""
    return _json({"deploymentName": NAME})


@readers.get("/system/displays/systemLog", summary="Read the system's log", responses=documented())
async def system_log(part: Annotated[PageFilter, Query()]) -> Response:
    """Return an empty page: this platform's own log is a file of its host."""
    return _page([], part, 0)


@readers.get("/system/displays/jobLog", summary="Read all jobs' logs", responses=documented())
async def all_logs(http: Request, part: Annotated[PageFilter, Query()]) -> Response:
    """Return the latest log of all jobs."""
    return await _logs(http, None, part)


# --- shared ----------------------------------------------------------------------------------


async def _job(http: Request, job_id: str) -> JobView:
    return await _scheduler(http).job(int(job_id, 16))


async def _views(http: Request, ids: Sequence[int]) -> list[JobView]:
    views: dict[int, JobView] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        named = JobFilter(ids=",".join(map(str, some)), limit=AT_ONCE)
        page = await _scheduler(http).jobs(named, caller_of(http).name)
        views |= {job.id: job for job in page.jobs}
    return [views[number] for number in ids if number in views]


async def _logs(http: Request, job: int | None, part: PageFilter) -> Response:
    async with _scheduler(http).store.database.read() as connection:
        rows, total = await job_lists.newest_logs(connection, job, part.skip, part.pageSize)
    shown = [
        {
            "timeStamp": row.at,
            "jobId": answers.job_id(row.job_id),
            "workerType": answers.worker_type(row.kind),
            "workerHostname": row.worker or "",
            "content": json.loads(row.data).get("text", ""),
        }
        for row in rows
    ]
    return _page(shown, part, total)
