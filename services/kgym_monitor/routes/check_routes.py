"""Patches of a check step: a list, and a page each with the compiler's messages."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import CheckResult, CheckSpec, PatchOutcome
from kgym.errors import NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import check_results
from kgym_monitor.routes.output_routes import JobId, Number

# Patches on a page.
PAGE = 100


readers = APIRouter(
    prefix="/jobs/{job_id}/steps/{number}/patches", dependencies=[needs(Scope.READ)]
)


@readers.get("")
async def list_patches(
    request: Request,
    job_id: JobId,
    number: Number,
    outcome: PatchOutcome | None = None,
    start: Annotated[int, Query(ge=0, lt=10_000, alias="from")] = 0,
) -> HTMLResponse:
    """Show the patches of a step, or those with one outcome."""
    job, step, spec = await _step(request, job_id, number)
    result = step.result if isinstance(step.result, CheckResult) else None
    checks = dict(enumerate(result.patches)) if result else {}
    listed = [(place, patch.name, checks.get(place)) for place, patch in enumerate(spec.patches)]
    if outcome is not None:
        listed = [row for row in listed if row[2] is not None and row[2].outcome is outcome]
    return state_of(request).rendering.page(
        request,
        "check_patches.html",
        title=f"Patches of job {job_id}",
        job=job,
        step=step,
        rows=listed[start : start + PAGE],
        counts=check_results.counts(result) if result else [],
        chosen=outcome,
        total=len(spec.patches),
        before=max(0, start - PAGE) if start else None,
        after=start + PAGE if start + PAGE < len(listed) else None,
    )


@readers.get("/{place}")
async def show_patch(
    request: Request, job_id: JobId, number: Number, place: Annotated[int, Path(ge=0, lt=10_000)]
) -> HTMLResponse:
    """Show a patch with the compiler's messages beside its lines."""
    job, step, spec = await _step(request, job_id, number)
    patch = check_results.patch(step, place)
    if patch is None:
        raise NotFound("patch_not_found", f"the step has {len(spec.patches)} patches")
    return state_of(request).rendering.page(
        request,
        "check_patch.html",
        title=f"Patch {place + 1} of job {job_id}",
        job=job,
        step=step,
        patch=patch,
        total=len(spec.patches),
    )


async def _step(request: Request, job_id: int, number: int) -> tuple[JobView, StepView, CheckSpec]:
    job = await session_of(request).client.job(job_id)
    step = job.steps[number] if number < len(job.steps) else None
    if step is None or not isinstance(step.spec, CheckSpec):
        raise NotFound("step_not_found", f"job {job_id} has no step {number} that checks patches")
    return job, step, step.spec
