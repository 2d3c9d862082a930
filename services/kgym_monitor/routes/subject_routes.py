"""Bugs and SuiteCache entries."""

import asyncio
from functools import partial

from fastapi import APIRouter, Request, Response

from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import subject_pages
from kgym_monitor.pages.bug_filter import BugQuery, EntryQuery
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_pages import Newest, Part, Read, answer_poll, is_poll

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/bugs")
async def list_bugs(request: Request) -> Response:
    """Show the requested page of bugs."""
    query = BugQuery.read(request.query_params)
    return await _list(request, "bugs", "Bugs", query, partial(subject_pages.bugs, query=query))


@readers.get("/bugs/{name:path}")
async def show_bug(request: Request, name: str) -> Response:
    """Show a bug and its latest jobs."""
    latest, listed = subject_pages.jobs_of(name), JobQuery(bug=name)
    read = partial(subject_pages.bug, name=name)
    if is_poll(request):
        newest = Newest(listed, request.url.path)
        return await answer_poll(request, read, Part("bug-live", "bug_live.html"), newest=newest)
    client = session_of(request).client
    shown, page = await asyncio.gather(read(client), client.page(latest))
    return state_of(request).rendering.page(
        request,
        "bug.html",
        title=f"Bug {name}",
        live=True,
        jobs=page.jobs,
        pickable=False,
        all_jobs=listed.address(),
        **shown,
    )


@readers.get("/suitecache")
async def list_entries(request: Request) -> Response:
    """Show a page of the stored compiled kernels."""
    query = EntryQuery.read(request.query_params)
    read = partial(subject_pages.entries, query=query)
    return await _list(request, "suitecache", "SuiteCache", query, read)


async def _list(
    request: Request, name: str, title: str, query: BugQuery | EntryQuery, read: Read
) -> Response:
    if is_poll(request):
        return await answer_poll(request, read, Part(f"{name}-live", f"{name}_live.html"))
    shown = await read(session_of(request).client)
    return state_of(request).rendering.page(
        request,
        f"{name}.html",
        title=title,
        live=not shown["fault"],
        first_page=query.address(cursor=None),
        **shown,
    )
