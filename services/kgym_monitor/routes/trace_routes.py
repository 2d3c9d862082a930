"""Traces of minimize steps: what a kernel executed before it crashed."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.steps import MinimizeArtifact, MinimizeResult, MinimizeSpec
from kgym.errors import NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.routes.output_routes import JobId, Number, step_of
from kgym_monitor.traces.call_list import Part
from kgym_monitor.traces.held_traces import HeldTrace
from kgym_monitor.traces.trace_query import TraceQuery
from kgym_monitor.traces.trace_view import PartQuery, TraceView

Time = Annotated[int | None, Query(ge=0, lt=1 << 64, description="ns of the trace clock")]
Place = Annotated[int | None, Query(ge=0, lt=1 << 53)]

readers = APIRouter(prefix="/jobs/{job_id}", dependencies=[needs(Scope.READ)])


def _query(
    start: Annotated[Time, Query(alias="from")] = None,
    end: Annotated[Time, Query(alias="to")] = None,
    thread: Annotated[str, Query(pattern=r"^[0-9]{0,10}$")] = "",
    function: Annotated[str, Query(max_length=200)] = "",
    whole: Annotated[str, Query(alias="all", max_length=3)] = "",
) -> TraceQuery:
    return TraceQuery(
        start=start,
        end=end,
        thread=min(int(thread), (1 << 31) - 1) if thread else None,
        function=function.strip(),
        whole=whole == "yes",
    )


def _asked(
    of: Annotated[str, Query(max_length=40)] = "main",
    node: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    first: Place = None,
    end: Annotated[int | None, Query(ge=-1, lt=1 << 53)] = None,
    back: Annotated[str, Query(max_length=3)] = "",
    record: Place = None,
    after: Time = None,
    before: Time = None,
) -> PartQuery:
    part = Part(node, first, end, back=back == "yes")
    return PartQuery(of, part, record, end, after, before)


@readers.get("/trace")
async def find_trace(request: Request, job_id: JobId) -> RedirectResponse:
    """Redirect to the trace of the job's first minimize step that has one."""
    job = await session_of(request).client.job(job_id)
    steps = [step for step in job.steps if isinstance(step.spec, MinimizeSpec)]
    if not steps:
        raise NotFound("no_trace", f"job {job_id} has no minimize step, so it has no trace")
    done = [step for step in steps if isinstance(step.result, MinimizeResult)]
    number = (done or steps)[0].number
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/jobs/{job_id}/steps/{number}/trace{query}", 303)


@readers.get("/steps/{number}/trace")
async def show_trace(
    request: Request, job_id: JobId, number: Number, query: Annotated[TraceQuery, Depends(_query)]
) -> HTMLResponse:
    """Show a trace."""
    state, client = state_of(request), session_of(request).client
    job = await client.job(job_id)
    step, result = _traced(job, number)
    records = _records(step)
    base = f"/jobs/{job_id}/steps/{number}/trace"
    view = TraceView(result.trace, query, base, has_records=records is not None)

    def page(held: HeldTrace | None) -> HTMLResponse:
        if request.headers.get("hx-request") == "true":
            return HTMLResponse(state.rendering.fragment("trace_view.html", view.shown(held)))
        return state.rendering.page(
            request,
            "trace.html",
            title=f"Trace, job {job_id}",
            job=job,
            step=step,
            result=result,
            **view.shown(held),
        )

    if not query.whole:
        return await asyncio.to_thread(page, None)
    return await state.traces.look(client, (job_id, number), _needed(records), page)


@readers.get("/steps/{number}/trace/part")
async def show_part(
    request: Request,
    job_id: JobId,
    number: Number,
    query: Annotated[TraceQuery, Depends(_query)],
    asked: Annotated[PartQuery, Depends(_asked)],
) -> HTMLResponse:
    """Send unfolded calls as a part of the page."""
    state, client = state_of(request), session_of(request).client
    step, result = _traced(await client.job(job_id), number)
    records = _records(step)
    base = f"/jobs/{job_id}/steps/{number}/trace"
    view = TraceView(result.trace, query, base, has_records=records is not None)

    def part(held: HeldTrace | None) -> HTMLResponse:
        shown = {"calls": view.unfolded(asked, held), "zero": view.zero}
        return HTMLResponse(state.rendering.fragment("trace_part.html", shown))

    if not (query.whole or asked.of.startswith("thread-")):
        return await asyncio.to_thread(part, None)
    return await state.traces.look(client, (job_id, number), _needed(records), part)


def _traced(job: JobView, number: int) -> tuple[StepView, MinimizeResult]:
    step = step_of(job, number)
    if not isinstance(step.result, MinimizeResult):
        why = f"; the step is {step.state}" if isinstance(step.spec, MinimizeSpec) else ""
        raise NotFound("no_trace", f"step {number} of job {job.id} has no trace{why}")
    return step, step.result


def _records(step: StepView) -> Artifact | None:
    """Return the artifact with all records, if it still exists."""
    if step.artifacts_gone_at:
        return None
    return next(
        (artifact for artifact in step.artifacts if artifact.name == MinimizeArtifact.TRACE), None
    )


def _needed(records: Artifact | None) -> Artifact:
    if records is None:
        raise NotFound(
            "no_records", "the file of all records does not exist, or retention has removed it"
        )
    return records
