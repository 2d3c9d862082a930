"""The overview, and the workers."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.api.jobs import JobFilter
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.live import running_agents
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages.step_history import SPANS, span_of
from kgym_monitor.routes.live_routes import address
from kgym_monitor.routes.own_forms import back, own_form

RECENT = 12
"""Jobs on the overview."""

readers = APIRouter(dependencies=[needs(Scope.READ)])
admins = APIRouter(dependencies=[needs(Scope.ADMIN), own_form])


@readers.get("/")
async def show_overview(
    request: Request, span: Annotated[str, Query(alias="range", max_length=20)] = "day"
) -> HTMLResponse:
    """Show queues, workers, storage, what steps came to over a time, and the latest jobs."""
    state, client = state_of(request), session_of(request).client
    since = state.changes.position
    chosen = span_of(span)
    page, platform, agents, history = await asyncio.gather(
        client.page(JobFilter(limit=RECENT, brief=True)),
        state.platform.read(),
        running_agents.read(state.agent),
        state.step_counts.of(chosen),
    )
    numbers = [job.id for job in page.jobs]
    return state.rendering.page(
        request,
        "overview.html",
        title="Overview",
        section="/",
        live=address(since, rows=numbers, summary=f"overview.history-{span}", newest="all"),
        spans=SPANS.values(),
        history=history,
        jobs=page.jobs,
        pickable=False,
        **platform,
        **agents,
    )


@readers.get("/workers")
async def show_workers(request: Request) -> HTMLResponse:
    """Show the workers."""
    state = state_of(request)
    since = state.changes.position
    return state.rendering.page(
        request,
        "workers.html",
        title="Workers",
        section="/workers",
        live=address(since, summary="workers"),
        workers=await session_of(request).client.workers(),
    )


@admins.post("/workers/drain")
async def drain(request: Request, worker: str = Form(max_length=200)) -> RedirectResponse:
    """Let a worker finish what it runs, and end."""
    await session_of(request).client.drain(worker)
    return back("/workers", f"{worker} takes no more steps.")
