"""Jobs: the list, one job, and actions on it."""

from typing import Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from kgym.api.states import State
from kgym.bugs import shipped
from kgym.client import AsyncClient
from kgym.errors import NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import job_page
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_pages import Newest, Part, answer_poll, is_poll, live_page, nothing
from kgym_monitor.routes.own_forms import back, own_form

readers = APIRouter(dependencies=[needs(Scope.READ)])
submitters = APIRouter(dependencies=[needs(Scope.SUBMIT), own_form])


@readers.get("/jobs")
async def list_jobs(request: Request) -> Response:
    """Show the requested page of jobs."""
    state, session = state_of(request), session_of(request)
    query = JobQuery.read(request.query_params)
    first_page, pickable = query.address(cursor=None, trail=None), session.caller.may(Scope.SUBMIT)
    if is_poll(request):
        newest = Newest(query, first_page)
        # With the monitor's own token, the scheduler would not know which jobs are the reader's.
        private = query.mine is not None
        return await answer_poll(
            request, nothing, newest=newest, pickable=pickable, private=private
        )
    wanted = query.filter
    page = await session.client.page(wanted) if wanted is not None else None
    mine = query.mine if session.caller.may(Scope.ADMIN) else "yes"
    every = query.model_copy(update={"cursor": None, "trail": None, "mine": mine})
    return state.rendering.page(
        request,
        "jobs.html",
        title="Jobs",
        live=wanted is not None,
        jobs=page.jobs if page else [],
        pickable=pickable,
        query=query,
        fault=query.fault,
        filtered=query.is_filtered,
        states=[state for state in State if state is not State.SKIPPED],
        bugs=shipped.names(),
        first_page=first_page,
        newer_page=query.newer_page,
        next_page=query.older_page(page.next) if page and page.next else None,
        abort_all=every.address("/jobs/abort"),
        restart_all=every.address("/jobs/restart"),
        scheduler=state.scheduler,
    )


@readers.get("/jobs/{job_id}")
async def show_job(
    request: Request, job_id: int, step: int | None = None, attempt: int | None = None
) -> Response:
    """Show a job and one of its steps."""
    if not 0 < job_id < 1 << 63 or (step is not None and step < 0) or (attempt or 1) < 1:
        raise NotFound("job_not_found", f"there is no job {job_id}, or no such step or attempt")

    async def read(client: AsyncClient) -> dict[str, Any]:
        job = await client.job(job_id)
        return job_page.shown(job, step, attempt) | await job_page.place(client, job)

    live = Part("job-live", "job_live.html")
    return await live_page(request, read, "job.html", f"Job {job_id}", live)


@submitters.post("/jobs/{job_id}/abort")
async def abort(request: Request, job_id: int) -> RedirectResponse:
    """Abort a job."""
    await session_of(request).client.abort(job_id)
    return back(f"/jobs/{job_id}", f"Job {job_id} was aborted.")


@submitters.post("/jobs/{job_id}/restart")
async def restart(
    request: Request, job_id: int, from_step: str = Form("", pattern="^[0-9]{0,2}$")
) -> RedirectResponse:
    """Run a finished job again."""
    await session_of(request).client.restart(job_id, int(from_step) if from_step else None)
    return back(f"/jobs/{job_id}", f"Job {job_id} runs again.")
