"""Artifacts: /v1/jobs/ID/steps/N/artifacts."""

from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import TypeAdapter

from kgym.api.jobs import Artifact
from kgym.errors import Gone
from kgym.web.problems import documented, problem
from kgym.web.routing import as_json_list, router
from kgym.web.scopes import Scope
from kgym_scheduler.api import byte_ranges
from kgym_scheduler.api.routing import Core, JobId, StepNumber
from kgym_scheduler.retention.artifact_retention import gone_since

ArtifactName = Annotated[str, Path(max_length=255)]

readers = router(Scope.READ)
_ARTIFACTS = TypeAdapter(list[Artifact])


@readers.get(
    "/jobs/{job_id}/steps/{number}/artifacts",
    summary="List a step's artifacts",
    tags=["output"],
    response_model=list[Artifact],
    responses=documented(404),
)
async def list_artifacts(scheduler: Core, job_id: JobId, number: StepNumber) -> Response:
    """Show the files that the step's last attempt left."""
    return as_json_list(_ARTIFACTS, await scheduler.artifacts(job_id, number))


@readers.head("/jobs/{job_id}/steps/{number}/artifacts/{name}", include_in_schema=False)
@readers.get(
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
            307: {"description": "Where the file can be fetched from the storage itself"},
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
        str | None,
        Header(alias="Range", max_length=4000, description="One range of bytes (RFC 9110)"),
    ] = None,
    if_range: Annotated[
        str | None, Header(max_length=200, description="An ETag: the range only of this")
    ] = None,
    direct: Annotated[
        bool, Query(description="Rather say where the storage gives the file out, if it does")
    ] = False,
) -> Response:
    """Send the file. Its ETag is its SHA-256.

    With `direct`, a storage in a bucket answers with a URL of its own, which is valid for an hour
    and needs no token.
    """
    found = await scheduler.artifact(job_id, number, name)
    if gone := await gone_since(scheduler.database, job_id, number):
        raise Gone(
            "artifact_gone",
            f"{name} was removed on {gone:%Y-%m-%d}, for its age or to save space; "
            f"restart job {job_id} from step {number} to make it again",
            gone_at=gone.isoformat(),
        )
    if direct and (link := await scheduler.storage.link(found.key)):
        return RedirectResponse(link, 307, {"Cache-Control": "no-store"})
    etag = f'"{found.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    try:
        part = byte_ranges.parse(range_ if if_range in {None, etag} else None, found.size)
    except byte_ranges.Unsatisfiable:
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
