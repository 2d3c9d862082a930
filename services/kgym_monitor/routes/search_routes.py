"""The search box: a job's number, a bug, a title, a function, a tag, a group or a submitter."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import search_words
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_routes import address

JOBS = 20
"""Jobs beside the bugs that were found."""

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/search", response_model=None)
async def search(request: Request, q: str = "") -> HTMLResponse | RedirectResponse:
    """Lead to what was asked for; where it may be several things, show them."""
    state, client = state_of(request), session_of(request).client
    asked = search_words.plain(q)
    if (number := search_words.job_number(asked)) is not None:
        return RedirectResponse(f"/jobs/{number}", 303)
    if not asked:
        return RedirectResponse("/jobs", 303)
    bug = JobQuery(bug=asked)
    if bug.filter is not None:
        known = await client.page(bug.filter.model_copy(update={"limit": 1}))
        if known.jobs:
            return RedirectResponse(bug.address(), 303)
    text = JobQuery(text=asked)
    bugs = search_words.bugs(asked)
    if not bugs or text.filter is None:
        return RedirectResponse(text.address(), 303)
    since = state.changes.position
    page = await client.page(text.filter.model_copy(update={"limit": JOBS}))
    return state.rendering.page(
        request,
        "search.html",
        title=f"Search: {asked}",
        live=address(since, rows=[job.id for job in page.jobs]),
        asked=asked,
        bugs=[(one, JobQuery(bug=one.name).address()) for one in bugs],
        jobs=page.jobs,
        pickable=False,
        all_jobs=text.address() if page.next else None,
    )
