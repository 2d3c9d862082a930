"""Artifacts: /v1/jobs/ID/steps/N/artifacts."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from kgym.api.jobs import Artifact
from kgym.errors import Gone
from kgym.web.problems import problem
from kgym.web.routing import as_json_list, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.retention.artifact_retention import gone_since
from kgym_scheduler.routing import Core, JobId, StepNumber

ArtifactName = Annotated[str, Path(max_length=255)]

readers = router(Scope.READ, "output")
_RANGE = re.compile(r"bytes=[ \t]*(?:(\d+)-(\d*)|-(\d+))[ \t]*", re.IGNORECASE | re.ASCII)


class UnsatisfiableRange(ValueError):
    """The range begins after the end of the content."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes [start, stop) of a content of `size` bytes."""

    start: int
    stop: int
    size: int

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Return the range that a Range header asks for; None if all has to be sent.

    Raises UnsatisfiableRange.
    """
    # RFC 9110, section 14.2: a server may ignore several ranges, other units and malformed ones.
    match = _RANGE.fullmatch(header) if header else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, stop = max(0, size - _capped(suffix)), size
    else:
        start, stop = _capped(first), min(size, _capped(last) + 1) if last else size
        if last and _capped(last) < _capped(first):
            return None
    if start >= size or stop <= start:
        raise UnsatisfiableRange
    return ByteRange(start, stop, size)


def _capped(digits: str) -> int:
    """Return the number, capped at 10**18: `int` refuses more than 4,300 digits."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) < 19 else 10**18


@readers.get(
    "/jobs/{job_id}/steps/{number}/artifacts",
    **described("List a step's artifacts", list[Artifact], 404),
)
async def list_artifacts(scheduler: Core, job_id: JobId, number: StepNumber) -> Response:
    """List the artifacts of the step's last attempt."""
    return as_json_list(await scheduler.store.artifacts(job_id, number))


@readers.head("/jobs/{job_id}/steps/{number}/artifacts/{name}", include_in_schema=False)
@readers.get(
    "/jobs/{job_id}/steps/{number}/artifacts/{name}",
    **described(
        "Download an artifact",
        StreamingResponse,
        404,
        410,
        416,
        answers={
            200: {"content": {"application/octet-stream": {}}},
            307: {"description": "A URL of the file in the storage"},
            206: {
                "content": {"application/octet-stream": {}},
                "description": "The range asked for",
            },
        },
    ),
)
async def download(
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
        bool, Query(description="Redirect to the storage if it can serve the file")
    ] = False,
) -> Response:
    """Send the file. Its ETag is its SHA-256.

    With `direct`, a bucket is redirected to by a URL that is valid for an hour and needs no token.
    """
    artifact = await scheduler.artifact(job_id, number, name)
    if gone := await gone_since(scheduler.store.database, job_id, number):
        raise Gone(
            "artifact_gone",
            f"{name} was removed on {gone:%Y-%m-%d}, for its age or to save space; "
            f"restart job {job_id} from step {number} to make it again",
            gone_at=gone.isoformat(),
        )
    if direct and (link := await scheduler.storage.link(artifact.key)):
        return RedirectResponse(link, 307, {"Cache-Control": "no-store"})
    etag = f'"{artifact.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    # RFC 9110, section 13.1.5: a range is sent only if the file is still the one of `If-Range`.
    try:
        part = parse_range(range_ if if_range in {None, etag} else None, artifact.size)
    except UnsatisfiableRange:
        detail = f"{name} has {artifact.size} bytes; {range_!r} asks for none of them"
        size = {"Content-Range": f"bytes */{artifact.size}"}
        return problem(request, 416, "range_not_satisfiable", detail, size)
    if request.method == "HEAD":
        headers["Content-Length"] = str(artifact.size)
        return Response(None, 200, headers, "application/octet-stream")
    start, stop = (part.start, part.stop) if part else (0, artifact.size)
    headers["Content-Length"] = str(stop - start)
    if part:
        headers["Content-Range"] = part.content_range
    body = scheduler.storage.read(artifact.key, start, stop)
    first = await anext(body, b"")  # a read error has to come before the status line
    return StreamingResponse(
        _chain(first, body), 206 if part else 200, headers, "application/octet-stream"
    )


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
