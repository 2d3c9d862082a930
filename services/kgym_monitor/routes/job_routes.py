"""Jobs: the list, one job, and what is done with them."""

import asyncio

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.bugs import shipped
from kgym.client import Refused
from kgym.errors import NotFound, UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import job_page
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_routes import address
from kgym_monitor.routes.own_forms import back, own_form

MANY = 1000
"""Jobs that one bulk action takes: as many as the scheduler does in one call."""
_AT_ONCE = 8
_ACTS = {"abort": "Abort jobs", "restart": "Restart jobs"}

readers = APIRouter(dependencies=[needs(Scope.READ)])
submitters = APIRouter(dependencies=[needs(Scope.SUBMIT), own_form])
openers = APIRouter(dependencies=[needs(Scope.SUBMIT)])


@readers.get("/jobs")
async def list_jobs(request: Request) -> HTMLResponse:
    """Show a page of the list that the address asks for."""
    state, session = state_of(request), session_of(request)
    query = JobQuery.read(request.query_params)
    since, wanted = state.changes.position, query.filter
    page = await session.client.page(wanted) if wanted is not None else None
    jobs = page.jobs if page else []
    own = query.address("", cursor=None).removeprefix("?") or "all"
    pickable = session.caller.may(Scope.SUBMIT)
    numbers = [job.id for job in jobs]
    # Which jobs are the reader's own, the monitor's own token does not tell.
    newest = None if query.mine or query.fault else own
    live = address(since, rows=numbers, pickable=pickable, newest=newest)
    mine = None if session.caller.may(Scope.ADMIN) else "yes"
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
        first_page=query.address(cursor=None),
        on_first_page=query.cursor is None,
        next_page=query.address(cursor=page.next) if page and page.next else None,
        abort_all=query.address("/jobs/abort", cursor=None, mine=query.mine or mine),
        scheduler=state.scheduler,
    )


@openers.get("/jobs/abort")
async def count_unfinished(request: Request) -> HTMLResponse:
    """Show how many unfinished jobs meet a filter, and ask whether to abort them."""
    query = JobQuery.read(request.query_params)
    if query.fault:
        raise UserError("bad_filter", query.fault)
    numbers: list[int] = []
    states = (State.RUNNING, State.QUEUED, State.PENDING)
    for state in [one for one in states if query.state in {None, one}]:
        wanted = (query.filter or JobFilter()).model_copy(update={"state": state, "limit": 200})
        numbers += await _numbers(request, wanted, MANY + 1 - len(numbers))
    return _asked(request, "abort", numbers, query.address())


async def _numbers(request: Request, wanted: JobFilter, most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        page = await session_of(request).client.page(wanted)
        found += [job.id for job in page.jobs]
        if page.next is None:
            break
        wanted = wanted.model_copy(update={"cursor": page.next})
    return found[:most]


def _asked(request: Request, act: str, numbers: list[int], came_from: str) -> HTMLResponse:
    ids = sorted(set(numbers), reverse=True)
    return state_of(request).rendering.page(
        request,
        "bulk.html",
        title=_ACTS[act],
        section="/jobs",
        act=act,
        ids=ids[:MANY],
        more=len(ids) > MANY,
        back=came_from,
        nothing="No job was selected."
        if act == "restart"
        else "No unfinished job is selected, or meets the filter.",
    )


@submitters.post("/jobs/bulk", response_model=None)
async def bulk(
    request: Request,
    act: str = Form(pattern="^(abort|restart)$"),
    came_from: str = Form("/jobs", alias="back", max_length=2000),
    sure: str = Form("", max_length=3),
    jobs: str = Form("", max_length=20 * MANY, pattern="^[0-9 ]*$"),
) -> HTMLResponse | RedirectResponse:
    """Ask whether to abort or restart the selected jobs; do it once that was answered."""
    form = await request.form()
    picked = [str(one) for one in form.getlist("job")] + jobs.split()
    numbers = [int(one) for one in picked if one.isdecimal() and len(one) < 19]
    if sure != "yes":
        return _asked(request, act, numbers, came_from)
    if not 0 < len(numbers) <= MANY:
        raise UserError("bad_request", f"select 1 to {MANY} jobs")
    if act == "restart":
        return back(came_from, await _restart(request, numbers))
    done = await session_of(request).client.abort_all(numbers)
    ended = f"; {len(done.finished)} had ended before" if done.finished else ""
    return back(came_from, f"Aborted {len(done.aborted)} jobs{ended}.")


async def _restart(request: Request, numbers: list[int]) -> str:
    client, refused = session_of(request).client, dict[int, str]()
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            try:
                await client.restart(number)
            except Refused as error:
                refused[number] = error.reason

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    not_done = f"; not {', '.join(f'{n} ({why})' for n, why in list(refused.items())[:5])}"
    return f"Restarted {len(numbers) - len(refused)} jobs{not_done if refused else ''}."


@readers.get("/jobs/{job_id}")
async def show_job(
    request: Request, job_id: int, step: int | None = None, attempt: int | None = None
) -> HTMLResponse:
    """Show a job, and one of its steps."""
    if not 0 < job_id < 1 << 63 or (step is not None and step < 0) or (attempt or 1) < 1:
        raise NotFound("job_not_found", f"there is no job {job_id}, or no such part of it")
    state = state_of(request)
    since = state.changes.position
    job = await session_of(request).client.job(job_id)
    return state.rendering.page(
        request,
        "job.html",
        title=f"Job {job.id}",
        section="/jobs",
        live=address(since, job=job.id, step=step, attempt=attempt),
        **job_page.shown(job, step, attempt),
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


@readers.get("/search")
async def search(request: Request, q: str = "") -> RedirectResponse:
    """Lead to what was asked for: a job's number, a bug's name, or text in what jobs are about."""
    asked = q.strip()[:200]
    number = asked.removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 19:
        return RedirectResponse(f"/jobs/{int(number)}", 303)
    if not asked:
        return RedirectResponse("/jobs", 303)
    bug = JobQuery(bug=asked)
    if bug.filter is not None and (await session_of(request).client.page(bug.filter)).jobs:
        return RedirectResponse(bug.address(), 303)
    return RedirectResponse(JobQuery(text=asked).address(), 303)
