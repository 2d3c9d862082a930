"""Consoles and bundle of a reproduce step."""

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
from kgym_monitor.routes.output_routes import JobId, Number, chain, step_of

# Most bundles compressed at a time, by one thread each.
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
    """Show consoles of several instances side by side, by default of two."""
    job = await session_of(request).client.job(job_id)
    step = step_of(job, number)
    return state_of(request).rendering.page(
        request,
        "consoles.html",
        title=f"Consoles, job {job_id}",
        job=job,
        step=step,
        instances=instance_consoles.instances(step),
        chosen=instance_consoles.chosen(job, step, instance),
        most=instance_consoles.MOST,
    )


@readers.get("/bundle.tar.gz")
async def bundle(request: Request, job_id: JobId, number: Number) -> Response:
    """Send the archive that crashes the kernel again by hand."""
    client = session_of(request).client
    job = await client.job(job_id)
    step = step_of(job, number)
    if any(artifact.name == NAME for artifact in step.artifacts):
        return RedirectResponse(f"/jobs/{job_id}/steps/{number}/artifacts/{NAME}", 303)
    if not is_packable(step):
        message = f"step {number} of job {job_id} has no artifacts for a bundle"
        raise NotFound("artifact_not_found", message)
    built = build_job(job, step)
    there = job if built == job_id else await client.job(built)
    content = _packed(client, members(job, step, there))
    first = await anext(content)  # errors must occur before the status line is sent
    name = f"job-{job_id}-step-{number}-{NAME}"
    return StreamingResponse(
        chain(first, content),
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
        media_type="application/gzip",
    )


async def _packed(client: AsyncClient, files: Sequence[Member]) -> AsyncIterator[bytes]:
    """Yield the archive; raise InfrastructureError `artifact_corrupt`."""
    # Packed on the fly: 160 MB, most of it `vmlinux`, are not worth storing. An error can no longer
    # change the status by then, so it breaks off the download.
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
            message = f"{member.artifact.name} of job {member.job} does not match its checksum"
            raise InfrastructureError("artifact_corrupt", message)
        yield begun + archive.end_file()
    yield archive.end()
