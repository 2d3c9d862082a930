"""Output of steps: logs, crash reports, artifacts."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import BuildResult, GitSource, ReproduceSpec
from kgym.errors import NotFound, UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import job_page
from kgym_monitor.pages.source_links import link

# Most bytes of a crash report on a page.
REPORT_BYTES = 4 << 20

JobId = Annotated[int, Path(ge=1, lt=1 << 63)]
Number = Annotated[int, Path(ge=0, lt=100)]
Name = Annotated[str, Path(max_length=255)]
From = Annotated[int, Query(ge=0, lt=1 << 53, alias="from", description="bytes to skip")]

readers = APIRouter(prefix="/jobs/{job_id}/steps/{number}", dependencies=[needs(Scope.READ)])


@readers.get("/attempts/{attempt}/log")
async def log(
    request: Request,
    job_id: JobId,
    number: Number,
    attempt: Annotated[int, Path(ge=1, lt=1 << 31)],
    start: From = 0,
) -> Response:
    """Send an attempt's log so far; `Kgym-Log: open` if it is still running."""
    state, client = state_of(request), session_of(request).client
    # The state is read before the log: if the attempt has ended by then, the log is complete.
    step = step_of(await state.shared.get(("job", job_id), 1, lambda: client.job(job_id)), number)
    if step.state is State.RUNNING and step.attempt == attempt:
        answer = await _text(state.running_logs.read((job_id, number, attempt), start))
        answer.headers["Kgym-Log"] = "open"
        return answer
    return await _text(_after(client.read_log(job_id, number, attempt), start))


@readers.get("/artifacts/{name}")
async def artifact(request: Request, job_id: JobId, number: Number, name: Name) -> Response:
    """Send an artifact as a download."""
    content = session_of(request).client.read_artifact(job_id, number, name)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    first = await anext(content, b"")
    return StreamingResponse(
        chain(first, content), headers=headers, media_type="application/octet-stream"
    )


@readers.get("/files/{name}/text")
async def file_text(
    request: Request, job_id: JobId, number: Number, name: Name, start: From = 0
) -> Response:
    """Send an artifact as plain text."""
    return await _text(
        _after(session_of(request).client.read_artifact(job_id, number, name), start)
    )


@readers.get("/files/{name}")
async def show_file(request: Request, job_id: JobId, number: Number, name: Name) -> HTMLResponse:
    """Show a text artifact."""
    step = step_of(await session_of(request).client.job(job_id), number)
    matching = [artifact for artifact in step.artifacts if artifact.name == name]
    if not matching:
        raise NotFound(
            "artifact_not_found", f"step {number} of job {job_id} has no artifact {name!r}"
        )
    if not job_page.is_text(matching[0]):
        raise UserError("binary_file", f"{name} is not text: download it")
    return state_of(request).rendering.page(
        request,
        "text_file.html",
        title=f"{name}, job {job_id}",
        job=job_id,
        step=number,
        name=name,
        source=f"/jobs/{job_id}/steps/{number}/files/{quote(name, safe='')}/text",
    )


@readers.get("/reports/{instance}")
async def report(
    request: Request,
    job_id: JobId,
    number: Number,
    instance: Annotated[int, Path(ge=0, lt=1 << 31)],
) -> HTMLResponse:
    """Send an instance's crash report as a part of the job's page."""
    state, client = state_of(request), session_of(request).client
    job = await client.job(job_id)
    step = step_of(job, number)
    content = b""
    async for part in client.read_artifact(job_id, number, f"report-{instance}.json"):
        content += part
        if len(content) > REPORT_BYTES:
            raise UserError("report_too_large", "the report is too long to show: download it")
    crash: dict[str, Any] = json.loads(content)
    source = _kernel(job, step)
    stacks = [
        (title, [{**frame, "link": link(*source, frame)} for frame in crash.get(name) or []])
        for title, name in (
            ("Call stack", "frames"),
            ("Allocated by", "alloc_stack"),
            ("Freed by", "free_stack"),
        )
    ]
    shown = job_page.shown(job, number, None)
    others = [other for other in shown["reports"] if other != instance][:20]
    base = f"/jobs/{job_id}/steps/{number}/reports"
    context = {"report": crash, "stacks": stacks, "others": others, "base": base}
    return HTMLResponse(state.rendering.fragment("crash_report.html", context))


def step_of(job: JobView, number: int) -> StepView:
    """Return a step of a job; raise NotFound `step_not_found`."""
    if number >= len(job.steps):
        raise NotFound("step_not_found", f"job {job.id} has {len(job.steps)} steps")
    return job.steps[number]


def _kernel(job: JobView, step: StepView) -> tuple[object, str | None]:
    """Return source and release of the kernel that a step ran, None where unknown."""
    if not isinstance(step.spec, ReproduceSpec) or step.spec.build.job is not None:
        return None, None
    built = job.step(step.spec.build.step)
    release = (
        built.result.kernel_release if built and isinstance(built.result, BuildResult) else None
    )
    source = getattr(built.spec, "source", None) if built else None
    return (source if isinstance(source, GitSource) else None), release


async def _text(content: AsyncIterator[bytes]) -> Response:
    first = await anext(content, b"")  # errors must occur before the status line is sent
    return StreamingResponse(chain(first, content), media_type="text/plain; charset=utf-8")


async def chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first part, then the others."""
    yield first
    async for part in rest:
        yield part


async def _after(content: AsyncIterator[bytes], start: int) -> AsyncIterator[bytes]:
    left = start
    async for part in content:
        if left < len(part):
            yield part[left:]
        left = max(0, left - len(part))
