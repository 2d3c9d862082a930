"""The search box: a job's number, a bug, a title, a function, a tag, a group or a submitter."""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from kgym.api.jobs import JobPage
from kgym.client import AsyncClient
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import search_words
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_pages import answer_poll, is_poll, nothing

JOBS = 20
"""Jobs beside the bugs that were found."""

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/search", response_model=None)
async def search(request: Request, q: str = "") -> Response:
    """Redirect to the only match; show a list if the words may mean several things."""
    if is_poll(request):
        return await answer_poll(request, nothing)
    state, client = state_of(request), session_of(request).client
    asked = search_words.plain(q)
    if (number := search_words.job_number(asked)) is not None:
        return RedirectResponse(f"/jobs/{number}", 303)
    if not asked:
        return RedirectResponse("/jobs", 303)
    bug, text = JobQuery(bug=asked), JobQuery(text=asked)
    bugs = search_words.bugs(asked)
    known, page = await asyncio.gather(_first(client, bug, 1), _first(client, text, JOBS))
    if known is not None and known.jobs:
        return RedirectResponse(bug.address(), 303)
    if not bugs or page is None:
        return RedirectResponse(text.address(), 303)
    return state.rendering.page(
        request,
        "search.html",
        title=f"Search: {asked}",
        live=True,
        asked=asked,
        bugs=[(bug, JobQuery(bug=bug.name).address()) for bug in bugs],
        jobs=page.jobs,
        pickable=False,
        all_jobs=text.address() if page.next else None,
    )


async def _first(client: AsyncClient, query: JobQuery, count: int) -> JobPage | None:
    """Return the first jobs of a list; None where the query asks for what there cannot be."""
    if query.filter is None:
        return None
    return await client.page(query.filter.model_copy(update={"limit": count}))
