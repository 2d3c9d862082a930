"""Runs: the list, one run with forest, cycles and questions, and comparisons."""

import asyncio
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from kgym.api.agent.runs import CallView, RunState, RunView
from kgym.api.agent.steps import RunStep
from kgym.client import AsyncClient
from kgym.errors import KgymError, NotFound, UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.agent_link import AgentLink
from kgym_monitor.monitor_state import MonitorState, session_of, state_of
from kgym_monitor.pages import run_forest, run_page
from kgym_monitor.pages.rendering import may
from kgym_monitor.pages.run_page import PAGE, Compared, RunQuery, Side
from kgym_monitor.routes.live_pages import Part, answer_poll, is_poll

RunId = Annotated[int, Path(ge=1, lt=1 << 62)]
Name = Annotated[str, Query(max_length=500)]
PARTS = ("prompt", "system", "turn", "answer")

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/runs")
async def list_runs(request: Request) -> Response:
    """Render the requested page of runs, or setup instructions if no agent is configured."""
    state = state_of(request)
    query = RunQuery.read(request.query_params)

    async def read(_: AsyncClient) -> dict[str, Any]:
        return await _listed(state.agent, query)

    if is_poll(request):
        return await answer_poll(request, read, Part("runs-live", "runs_live.html"))
    has_agent = state.agent.url is not None
    shown = await _listed(state.agent, query) if has_agent else {"next_page": None, "fault": None}
    return state.rendering.page(
        request,
        "runs.html",
        title="Runs",
        live=has_agent and not query.fault,
        has_agent=has_agent,
        filtered=query.is_filtered,
        states=list(RunState),
        first_page=query.address(cursor=None),
        on_first_page=query.cursor is None,
        **{"query": query, **shown},
    )


async def _listed(agent: AgentLink, query: RunQuery) -> dict[str, Any]:
    """Return the contents of the list of runs; `fault` says why it is empty."""
    shown: dict[str, Any] = {"query": query, "runs": [], "next_page": None, "fault": query.fault}
    wanted = query.filter
    if wanted is None:
        return shown
    try:
        page = await agent.client().page(query.before, PAGE, wanted)
    except KgymError as error:
        return shown | {"fault": str(error)}
    following = query.address(cursor=str(page.next)) if page.next else None
    return shown | {"runs": page.runs, "next_page": following}


@readers.get("/runs/compare")
async def compare(
    request: Request, sides: Annotated[list[str] | None, Query(alias="with", max_length=20)] = None
) -> HTMLResponse:
    """Compare two runs, debug cycles or patches side by side."""
    state = state_of(request)
    named = [name for name in sides or [] if name.strip()]
    if len(named) > 2:
        raise UserError("bad_comparison", "at most two can be compared")
    shown = []
    if len(named) == 2:
        both = [Side.read(name) for name in named]
        shown = await asyncio.gather(*(_side(state, side) for side in both))
    return state.rendering.page(
        request,
        "run_compare.html",
        title="Compare",
        named=named,
        shown=[(left, right) for left, right in zip(shown, reversed(shown), strict=True)],
    )


async def _side(state: MonitorState, side: Side) -> Compared:
    client = state.agent.client()
    run = await client.show(side.run)
    if not side.node:
        return run_page.compared(side, run, None, [])
    node, steps = await asyncio.gather(
        client.node(side.run, side.node), client.steps(side.run, side.node)
    )
    return run_page.compared(side, run, node, steps)


@readers.get("/runs/{run}")
async def show_run(
    request: Request,
    run: RunId,
    node: Annotated[str | None, Query(max_length=500)] = None,
    hide: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """Show a run: its cost, its forest, and one of its debug cycles."""
    state = state_of(request)

    async def read(_: AsyncClient) -> dict[str, Any]:
        view = await state.agent.client().show(run)
        # Without a choice, show the cycle that is running, if any.
        chosen = node or run_page.current(view)
        opened = await _cycle(state, view, chosen) if chosen else {}
        return _forest(state, view) | opened | {"chosen": chosen}

    if is_poll(request):
        parts = [Part("run-live", "run_live.html"), Part("forest", "rendered.html", "innerMorph")]
        parts.append(Part("fixes", "run_fixes.html"))
        parts.append(Part("opened", "run_opened.html", "innerMorph"))
        return await answer_poll(request, read, *parts)
    session, shown = session_of(request), await read(session_of(request).client)
    view: RunView = shown["run"]
    own = may(session, Scope.SUBMIT) and session.caller.owner in {None, view.submitter}
    return state.rendering.page(
        request,
        "run.html",
        title=f"Run {run}: {view.bug}",
        live=True,
        hidden=run_page.hidden(hide),
        step_kinds=run_page.STEP_KINDS,
        cycle_kinds=run_page.CYCLE_KINDS,
        may_change=own,
        **shown,
    )


def _forest(state: MonitorState, view: RunView) -> dict[str, Any]:
    """Return the contents of a run's live parts; `rendered` is its forest as HTML."""

    def draw(cycle: run_forest.Cycle) -> str:
        return state.rendering.fragment("run_card.html", {"run": view.id, "cycle": cycle})

    html = run_forest.forest(view.nodes, draw)
    return {"run": view, "outcomes": run_forest.outcomes(view.nodes), "rendered": html}


@readers.get("/runs/{run}/cycle")
async def show_cycle(request: Request, run: RunId, node: Name) -> HTMLResponse:
    """Send a debug cycle as a part of the run's page."""
    state = state_of(request)
    shown = await _cycle(state, await state.agent.client().show(run), node)
    return HTMLResponse(state.rendering.fragment("run_cycle.html", shown))


async def _cycle(state: MonitorState, run: RunView, name: str) -> dict[str, Any]:
    """Return the contents of a cycle; raise NotFound if the run has no such cycle."""
    client = state.agent.client()
    node, steps = await asyncio.gather(client.node(run.id, name), client.steps(run.id, name))
    return run_page.cycle(run, node, steps)


@readers.get("/runs/{run}/calls")
async def search_calls(
    request: Request,
    run: RunId,
    text: Annotated[str, Query(max_length=200)] = "",
    node: Annotated[str, Query(max_length=500)] = "",
    purpose: Annotated[str, Query(max_length=30)] = "",
    cursor: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
) -> HTMLResponse:
    """Show a run's questions, or those that contain a text."""
    state = state_of(request)
    page = await state.agent.client().search(
        run, text.strip() or None, node.strip() or None, purpose.strip() or None, cursor
    )
    following = None
    if page.next is not None:
        following = run_page.query(
            f"/runs/{run}/calls", text=text, node=node, purpose=purpose, cursor=page.next
        )
    return state.rendering.page(
        request,
        "run_calls.html",
        title=f"Questions of run {run}",
        run=run,
        calls=page.calls,
        next_page=following,
        cursor=cursor,
        text=text,
        node=node,
        purpose=purpose,
    )


@readers.get("/runs/{run}/call")
async def show_call(request: Request, run: RunId, name: Name) -> HTMLResponse:
    """Show a question to the model and its answer."""
    state = state_of(request)
    client = state.agent.client()
    call = await client.call(run, name)
    steps = await client.steps(run, call.node)
    parts = [(part, text) for part in PARTS if (text := _part(call, part))]
    asked = [step.name for step in steps if step.work in run_page.ASKED]
    place = asked.index(name) if name in asked else None
    return state.rendering.page(
        request,
        "run_call.html",
        title=f"{name}, run {run}",
        run=run,
        call=call,
        answer=run_page.answer_parts(call.reply.text) if call.reply else [],
        before=asked[place - 1] if place else None,
        after=asked[place + 1] if place is not None and place + 1 < len(asked) else None,
        followed=_followed(steps, name),
        parts=[
            (part, run_page.query(f"/runs/{run}/call/text", name=name, part=part), len(text))
            for part, text in parts
        ],
    )


def _followed(steps: Sequence[RunStep], name: str) -> list[RunStep]:
    """Return the checks and kernels between this question and the next one of its cycle."""
    own = list(dropwhile(lambda step: step.name != name, steps))
    return list(takewhile(lambda step: step.work not in run_page.ASKED, own[1:]))


@readers.get("/runs/{run}/call/text")
async def call_text(
    request: Request,
    run: RunId,
    name: Name,
    part: Annotated[str, Query(pattern="^(prompt|system|turn|answer)$")],
    start: Annotated[int, Query(ge=0, lt=1 << 53, alias="from")] = 0,
) -> Response:
    """Send a part of a question as plain text, from an offset in bytes."""
    call = await state_of(request).agent.client().call(run, name)
    text = _part(call, part)
    if not text:
        raise NotFound("part_not_found", f"{name} of run {run} has no {part}")
    content = text.encode(errors="replace")[start:]
    return PlainTextResponse(content, media_type="text/plain; charset=utf-8")


def _part(call: CallView, part: str) -> str:
    match part:
        case "prompt":
            return call.prompt
        case "system":
            return call.system
        case "turn" if call.last_turn is not None:
            results = call.last_turn.results.items()
            return "\n".join([call.last_turn.text, *(f"{name}:\n{text}" for name, text in results)])
        case "answer" if call.reply is not None:
            calls = (f"{call.name} {call.arguments}" for call in call.reply.calls)
            return "\n".join([call.reply.text, *calls])
    return ""
