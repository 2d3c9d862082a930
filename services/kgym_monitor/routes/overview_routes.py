"""The overview and the workers."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from kgym.api.agent.runs import RunFilter, RunState
from kgym.api.jobs import JobFilter
from kgym.api.statistics import Statistics
from kgym.api.storage import StorageView
from kgym.client import AsyncClient, Refused
from kgym.errors import KgymError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.agent_link import AgentLink
from kgym_monitor.monitor_state import MonitorState, session_of, state_of
from kgym_monitor.pages import attention, step_history
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.pages.run_page import PAGE
from kgym_monitor.pages.step_history import SPANS, Span, span_of
from kgym_monitor.routes.live_pages import Newest, Part, answer_poll, is_poll, live_page
from kgym_monitor.routes.own_forms import back, own_form

# Jobs on the overview.
RECENT = 12
# Most age of charts: the scheduler counts once a minute, and an answer costs it 60 ms.
HISTORY_SECONDS = 30.0

readers = APIRouter(dependencies=[needs(Scope.READ)])
admins = APIRouter(dependencies=[needs(Scope.ADMIN), own_form])


@readers.get("/")
async def show_overview(
    request: Request, span: Annotated[str, Query(alias="range", max_length=20)] = "day"
) -> Response:
    """Show queues, workers, storage, step results over time, and the latest jobs."""
    state = state_of(request)
    chosen = span_of(span)

    async def read(client: AsyncClient) -> dict[str, Any]:
        shown, history = await asyncio.gather(
            _overview(client, state),
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
        live=True,
        spans=SPANS.values(),
        jobs=page.jobs,
        pickable=False,
        **shown,
    )


async def _history(state: MonitorState, span: Span) -> dict[str, Any]:
    """Return a span's history, also rendered, as its tables are long and shared by all readers."""
    counts = await state.client.statistics(span.wanted(datetime.now(UTC)))
    history = step_history.history(span, counts)
    html = state.rendering.fragment("overview_history.html", {"history": history})
    return {"history": history, "rendered": html}


@readers.get("/workers")
async def show_workers(request: Request) -> Response:
    """Show the workers."""

    state = state_of(request)

    async def read(client: AsyncClient) -> dict[str, Any]:
        workers, hour = await asyncio.gather(client.workers(), _last_hour(state))
        paces = attention.paces(workers, hour.median_seconds, datetime.now(UTC))
        return {"workers": workers, "paces": paces}

    live = Part("workers-live", "workers_live.html")
    return await live_page(request, read, "workers.html", "Workers", live)


@admins.post("/workers/drain")
async def drain(request: Request, worker: str = Form(max_length=200)) -> RedirectResponse:
    """Let a worker finish its steps and exit."""
    await session_of(request).client.drain(worker)
    return back("/workers", f"{worker} takes no more steps.")


# --- what the overview shows ----------------------------------------------------------------------


# How long the overview waits for the agent, which must not hold up the rest.
AGENT_SECONDS = 3.0


async def _last_hour(state: MonitorState) -> Statistics:
    """Return the ended attempts of the last hour, and how long steps usually take."""

    async def read() -> Statistics:
        return await state.client.statistics(SPANS["hour"].wanted(datetime.now(UTC)))

    return await state.shared.get("last hour", HISTORY_SECONDS, read)


async def _overview(client: AsyncClient, state: MonitorState) -> dict[str, Any]:
    """Return the contents of the overview's live part; raise KgymError as the client does."""
    queues, workers, storage, agents, hour = await asyncio.gather(
        *(client.queues(), client.workers(), _storage(client), _running_agents(state.agent)),
        _last_hour(state),
    )
    paces = attention.paces(workers, hour.median_seconds, datetime.now(UTC))
    live = [worker for worker in workers if worker.state != "lost"]
    running = sorted(
        (step for worker in live for step in worker.running), key=lambda step: step.started_at
    )
    counts = Counter(worker.state for worker in workers)
    return {
        "notices": list(attention.notices(queues, workers, storage, hour.counts, paces)),
        "paces": paces,
        "queues": [queue for queue in queues if queue.queued or queue.running],
        "running": running,
        "counts": {state: counts[state] for state in ("live", "draining", "lost")},
        "slots": sum(worker.slots for worker in live),
        "storage": storage,
        **agents,
    }


async def _storage(client: AsyncClient) -> StorageView | None:
    try:
        return await client.storage()
    except Refused:  # a scheduler without upkeep has no numbers
        return None


async def _running_agents(agent: AgentLink) -> dict[str, Any]:
    """Return the newest running runs and their cost; `agent_fault` says why they are unknown."""
    shown: dict[str, Any] = {"has_agent": agent.url is not None, "runs": [], "agent_fault": None}
    if not shown["has_agent"]:
        return shown
    try:
        async with asyncio.timeout(AGENT_SECONDS):
            page = await agent.client().page(None, PAGE, RunFilter(state=RunState.RUNNING))
    except KgymError as error:
        return shown | {"agent_fault": str(error)}
    except TimeoutError:
        fault = f"the agent did not answer within {AGENT_SECONDS:g} s"
        return shown | {"agent_fault": fault}
    known = [run.spent.dollars or run.spent.known_dollars for run in page.runs]
    is_lower_bound = page.next is not None or any(run.spent.dollars is None for run in page.runs)
    more = "over " if is_lower_bound else ""
    return shown | {"runs": page.runs, "cost": f"{more}${sum(known):,.2f}"}
