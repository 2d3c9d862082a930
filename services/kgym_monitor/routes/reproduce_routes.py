"""What there is to see and to fetch of a reproduce step: consoles side by side, its bundle."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

from kgym.client import AsyncClient
from kgym.client.reproduce_bundle import (
    NAME,
    BundleArchive,
    Member,
    build_job,
    is_packable,
    members,
)
from kgym.errors import InfrastructureError, NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import instance_consoles
from kgym_monitor.routes.output_routes import JobId, Number, step_of

# Bundles that are compressed at the same time, each by one thread.
PACKING = 2
_packing = asyncio.Semaphore(PACKING)

readers = APIRouter(prefix="/jobs/{job_id}/steps/{number}", dependencies=[needs(Scope.READ)])


@readers.get("/consoles")
async def consoles(
    request: Request,
    job_id: JobId,
    number: Number,
    instance: Annotated[list[int], Query(max_length=100)] = [],  # noqa: B006
) -> HTMLResponse:
    """Show the consoles of several instances side by side; without a choice, of two."""
    job = await session_of(request).client.job(job_id)
    step = step_of(job, number)
    return state_of(request).rendering.page(
        request,
        "consoles.html",
        title=f"Consoles, job {job_id}",
        section="/jobs",
        job=job,
        step=step,
        instances=instance_consoles.instances(step),
        chosen=instance_consoles.chosen(job, step, instance),
        most=instance_consoles.MOST,
    )


@readers.get("/bundle.tar.gz")
async def bundle(request: Request, job_id: JobId, number: Number) -> Response:
    """Send what crashes the kernel again by hand, packed while it is sent."""
    client = session_of(request).client
    job = await client.job(job_id)
    step = step_of(job, number)
    if any(artifact.name == NAME for artifact in step.artifacts):
        return RedirectResponse(f"/jobs/{job_id}/steps/{number}/artifacts/{NAME}", 303)
    if not is_packable(step):
        message = f"step {number} of job {job_id} left nothing that a bundle is packed of"
        raise NotFound("artifact_not_found", message)
    built = build_job(job, step)
    there = job if built == job_id else await client.job(built)
    content = _packed(client, members(job, step, there))
    first = await anext(content)  # an error has to come before the status line
    name = f"job-{job_id}-step-{number}-{NAME}"
    return StreamingResponse(
        _chain(first, content),
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
        media_type="application/gzip",
    )


async def _packed(client: AsyncClient, files: Sequence[Member]) -> AsyncIterator[bytes]:
    """Yield the archive; raise InfrastructureError if a file is not as it was stored."""
    # Packed while it is sent: 160 MB, most of it `vmlinux`, would not be worth keeping. By then no
    # error can be told by a status, so that the download breaks off instead.
    archive = BundleArchive()
    for member in files:
        begun, read = archive.begin(member), hashlib.sha256()
        size = 0
        async for part in client.read_artifact(member.job, member.step, member.artifact.name):
            size += len(part)
            read.update(part)
            async with _packing:
                packed = await asyncio.to_thread(archive.add, part)
            if begun or packed:
                yield begun + packed
            begun = b""
        if (size, read.hexdigest()) != (member.artifact.size, member.artifact.sha256):
            message = f"{member.artifact.name} of job {member.job} is not as it was stored"
            raise InfrastructureError("artifact_corrupt", message)
        yield begun + archive.end_file()
    yield archive.end()


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part
