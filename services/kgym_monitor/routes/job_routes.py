"""Jobs: the list, one job, and what is done with them."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.api.states import State
from kgym.bugs import shipped
from kgym.errors import NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import job_page
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_routes import address
from kgym_monitor.routes.own_forms import back, own_form

readers = APIRouter(dependencies=[needs(Scope.READ)])
submitters = APIRouter(dependencies=[needs(Scope.SUBMIT), own_form])


@readers.get("/jobs")
async def list_jobs(request: Request) -> HTMLResponse:
    """Show a page of the list that the address asks for."""
    state, session = state_of(request), session_of(request)
    query = JobQuery.read(request.query_params)
    since, wanted = state.changes.position, query.filter
    page = await session.client.page(wanted) if wanted is not None else None
    jobs = page.jobs if page else []
    own = query.address("", cursor=None, trail=None).removeprefix("?") or "all"
    pickable = session.caller.may(Scope.SUBMIT)
    numbers = [job.id for job in jobs]
    # Which jobs are the reader's own, the monitor's own token does not tell.
    newest = None if query.mine or query.fault else own
    live = address(since, rows=numbers, pickable=pickable, newest=newest)
    mine = query.mine if session.caller.may(Scope.ADMIN) else "yes"
    every = query.model_copy(update={"cursor": None, "trail": None, "mine": mine})
    return state.rendering.page(
        request,
        "jobs.html",
        title="Jobs",
        section="/jobs",
        live=live,
        jobs=jobs,
        pickable=pickable,
        query=query,
        fault=query.fault,
        filtered=query.is_filtered,
        states=[state for state in State if state is not State.SKIPPED],
        bugs=shipped.names(),
        first_page=query.address(cursor=None, trail=None),
        newer_page=query.newer_page,
        next_page=query.older_page(page.next) if page and page.next else None,
        abort_all=every.address("/jobs/abort"),
        restart_all=every.address("/jobs/restart"),
        scheduler=state.scheduler,
    )


@readers.get("/jobs/{job_id}")
async def show_job(
    request: Request, job_id: int, step: int | None = None, attempt: int | None = None
) -> HTMLResponse:
    """Show a job, and one of its steps."""
    if not 0 < job_id < 1 << 63 or (step is not None and step < 0) or (attempt or 1) < 1:
        raise NotFound("job_not_found", f"there is no job {job_id}, or no such part of it")
    state = state_of(request)
    since = state.changes.position
    client = session_of(request).client
    job = await client.job(job_id)
    return state.rendering.page(
        request,
        "job.html",
        title=f"Job {job.id}",
        section="/jobs",
        live=address(since, job=job.id, step=step, attempt=attempt),
        **job_page.shown(job, step, attempt) | await job_page.place(client, job),
    )


@submitters.post("/jobs/{job_id}/abort")
async def abort(request: Request, job_id: int) -> RedirectResponse:
    """End a job now."""
    await session_of(request).client.abort(job_id)
    return back(f"/jobs/{job_id}", f"Job {job_id} was aborted.")


@submitters.post("/jobs/{job_id}/restart")
async def restart(
    request: Request, job_id: int, from_step: str = Form("", pattern="^[0-9]{0,2}$")
) -> RedirectResponse:
    """Run a finished job again."""
    await session_of(request).client.restart(job_id, int(from_step) if from_step else None)
    return back(f"/jobs/{job_id}", f"Job {job_id} runs again.")
