"""Benchmarks: leaderboards, bugs, comparisons, attempts."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from kgym.api.benchmarks.publication import BenchmarkLine
from kgym.bench.attributes import ATTRIBUTES
from kgym.errors import NotFound, UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.benchmarks import board
from kgym_monitor.benchmarks.board_query import BoardQuery
from kgym_monitor.benchmarks.held_benchmarks import HeldBenchmark, Reading
from kgym_monitor.benchmarks.links import LiveLinks
from kgym_monitor.monitor_state import session_of, state_of

MOST = 500
"""Benchmarks in the list."""

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/benchmarks")
async def list_benchmarks(request: Request) -> HTMLResponse:
    """Show which benchmarks there are."""
    found: list[BenchmarkLine] = []
    async for one in session_of(request).client.benchmarks():
        found.append(one)
        if len(found) == MOST:
            break
    return state_of(request).rendering.page(
        request, "benchmarks.html", title="Benchmarks", section="/benchmarks", benchmarks=found
    )


@readers.get("/benchmarks/{name}")
async def show_board(request: Request, name: str) -> HTMLResponse:
    """Show the leaderboard of the bugs and setups that the address asks for."""
    return await _page(request, name, "benchmark.html", f"Benchmark {name}", board.board)


@readers.get("/benchmarks/{name}/bugs")
async def list_bugs(request: Request, name: str) -> HTMLResponse:
    """Show its bugs, the toughest first."""
    return await _page(request, name, "benchmark_bugs.html", f"Bugs of {name}", board.bugs)


@readers.get("/benchmarks/{name}/compare")
async def compare(request: Request, name: str) -> HTMLResponse:
    """Show two setups beside one another."""
    return await _page(request, name, "benchmark_compare.html", "Compare", board.compared)


@readers.get("/benchmarks/{name}/bugs/{bug}")
async def show_bug(request: Request, name: str, bug: str) -> HTMLResponse:
    """Show a bug, its fix, and what came of the attempts on it."""
    found = await session_of(request).client.benchmark_bug(name, bug)
    return await _page(
        request, name, "benchmark_bug.html", f"Bug {bug[:12]}", board.bug, bug, fix=found
    )


@readers.get("/benchmarks/{name}/bugs/{bug}/attempts/{setup}/{run}")
async def show_attempt(request: Request, name: str, bug: str, setup: int, run: int) -> HTMLResponse:
    """Show an attempt, its patch beside the developers'."""
    client = session_of(request).client
    found = await client.benchmark_attempt(name, bug, setup, run)
    return state_of(request).rendering.page(
        request,
        "benchmark_attempt.html",
        title=f"Run {run} on {bug[:12]}",
        section="/benchmarks",
        name=name,
        attempt=found,
        fix=await client.benchmark_bug(name, bug),
        links=LiveLinks(name, BoardQuery()),
        words=board,
    )


async def _page(
    request: Request,
    name: str,
    template: str,
    title: str,
    make: Callable[..., dict[str, Any]],
    *of: str,
    **more: Any,
) -> HTMLResponse:
    """Show a page of a benchmark, or that it is still being read."""
    state, query = state_of(request), BoardQuery.read(request.query_params)
    view = await session_of(request).client.benchmark(name)
    held = await state.benchmarks.get(view)
    given: dict[str, Any] = {"title": title, "section": "/benchmarks", "name": name}
    if isinstance(held, Reading):
        return state.rendering.page(request, "benchmark_loading.html", reading=held, **given)
    given |= {"query": query, "links": LiveLinks(name, query), "attributes": ATTRIBUTES}
    given |= {"words": board, "fault": None, **more}
    try:
        shown = await asyncio.to_thread(state.ready.get, held, query, make, *of)
    except NotFound:
        raise
    except UserError as error:
        given |= _nothing(held) | {"fault": str(error)}
        return state.rendering.page(request, template, **given)
    return state.rendering.page(request, template, **given, **shown)


def _nothing(held: HeldBenchmark) -> dict[str, Any]:
    """Return what a page shows whose address is wrong, besides the fault."""
    setups = [one.setup for one in held.view.setups]
    return {
        "held": held.view,
        "k": 1,
        "most": 1,
        "setups": [(one.number, one.setup) for one in held.view.setups],
        "one": None,
        "other": None,
        "agents": sorted({one.agent for one in setups}),
        "models": sorted({one.model for one in setups if one.model}),
    }
