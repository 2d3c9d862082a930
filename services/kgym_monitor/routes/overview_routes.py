"""The overview, and the workers."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from kgym.api.jobs import JobFilter
from kgym.client import AsyncClient
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import MonitorState, session_of, state_of
from kgym_monitor.pages import overview, step_history
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.pages.step_history import SPANS, Span, span_of
from kgym_monitor.routes.live_pages import Newest, Part, answer_poll, is_poll
from kgym_monitor.routes.own_forms import back, own_form

RECENT = 12
"""Jobs on the overview."""
HISTORY_SECONDS = 30.0
"""How old charts may be: the scheduler counts once a minute, and an answer costs it 60 ms."""

readers = APIRouter(dependencies=[needs(Scope.READ)])
admins = APIRouter(dependencies=[needs(Scope.ADMIN), own_form])


@readers.get("/")
async def show_overview(
    request: Request, span: Annotated[str, Query(alias="range", max_length=20)] = "day"
) -> Response:
    """Show queues, workers, storage, the results of steps over a time, and the latest jobs."""
    state = state_of(request)
    chosen = span_of(span)

    async def read(client: AsyncClient) -> dict[str, Any]:
        shown, history = await asyncio.gather(
            overview.read(client, state.agent),
            state.shared.get(chosen, HISTORY_SECONDS, lambda: _history(state, chosen)),
        )
        return shown | history

    if is_poll(request):
        parts = Part("overview-live", "overview_live.html"), Part("history-live", "rendered.html")
        return await answer_poll(request, read, *parts, newest=Newest(JobQuery(), "/"))
    client = session_of(request).client
    page, shown = await asyncio.gather(
        client.page(JobFilter(limit=RECENT, brief=True)), read(client)
    )
    return state.rendering.page(
        request,
        "overview.html",
        title="Overview",
        section="/",
        live=True,
        spans=SPANS.values(),
        jobs=page.jobs,
        pickable=False,
        **shown,
    )


async def _history(state: MonitorState, span: Span) -> dict[str, Any]:
    """Return the history of a span, also rendered: its tables are long."""
    counts = await state.client.statistics(span.wanted(datetime.now(UTC)))
    history = step_history.history(span, counts)
    html = state.rendering.fragment("overview_history.html", {"history": history})
    return {"history": history, "rendered": html}


@readers.get("/workers")
async def show_workers(request: Request) -> Response:
    """Show the workers."""

    async def read(client: AsyncClient) -> dict[str, Any]:
        return {"workers": await client.workers()}

    if is_poll(request):
        return await answer_poll(request, read, Part("workers-live", "workers_live.html"))
    return state_of(request).rendering.page(
        request,
        "workers.html",
        title="Workers",
        section="/workers",
        live=True,
        **await read(session_of(request).client),
    )


@admins.post("/workers/drain")
async def drain(request: Request, worker: str = Form(max_length=200)) -> RedirectResponse:
    """Let a worker finish its steps and end."""
    await session_of(request).client.drain(worker)
    return back("/workers", f"{worker} takes no more steps.")
