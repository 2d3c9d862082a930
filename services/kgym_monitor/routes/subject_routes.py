"""Bugs, and the entries of SuiteCache."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import subject_pages
from kgym_monitor.pages.bug_filter import BugQuery, EntryQuery
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_routes import address

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/bugs")
async def list_bugs(request: Request) -> HTMLResponse:
    """Show a page of the bugs that the address asks for."""
    state, query = state_of(request), BugQuery.read(request.query_params)
    since = state.changes.position
    shown = await subject_pages.bugs(session_of(request).client, query)
    return state.rendering.page(
        request,
        "bugs.html",
        title="Bugs",
        section="/bugs",
        live=None if shown["fault"] else address(since, summary="bugs", of=query.query()),
        first_page=query.address("/bugs", cursor=None),
        **shown,
    )


@readers.get("/bugs/{name:path}")
async def show_bug(request: Request, name: str) -> HTMLResponse:
    """Show a bug and the latest jobs on it."""
    state, client = state_of(request), session_of(request).client
    since = state.changes.position
    latest = subject_pages.jobs_of(name)
    shown, page = await asyncio.gather(subject_pages.bug(client, name), client.page(latest))
    jobs = page.jobs
    listed = JobQuery(bug=name)
    rows = [job.id for job in jobs]
    newest = listed.address("").removeprefix("?")
    return state.rendering.page(
        request,
        "bug.html",
        title=f"Bug {name}",
        section="/bugs",
        live=address(since, rows=rows, summary="bug", of=name, newest=newest),
        jobs=jobs,
        pickable=False,
        all_jobs=listed.address(),
        **shown,
    )


@readers.get("/suitecache")
async def list_entries(request: Request) -> HTMLResponse:
    """Show a page of the compiled kernels that are kept."""
    state, query = state_of(request), EntryQuery.read(request.query_params)
    since = state.changes.position
    shown = await subject_pages.entries(session_of(request).client, query)
    return state.rendering.page(
        request,
        "suitecache.html",
        title="SuiteCache",
        section="/suitecache",
        live=None if shown["fault"] else address(since, summary="suitecache", of=query.query()),
        first_page=query.address("/suitecache", cursor=None),
        **shown,
    )
