"""Benchmarks: leaderboards, bugs, comparisons, attempts."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from kgym.bench import query as queries
from kgym.bench.attributes import ATTRIBUTES
from kgym.bench.published_benchmark import Benchmark
from kgym.bench.query import Query
from kgym.errors import KgymError, NotFound, UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.benchmarks import board
from kgym_monitor.benchmarks.board_query import BoardQuery
from kgym_monitor.benchmarks.held_benchmarks import Reading
from kgym_monitor.monitor_state import state_of

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/benchmarks")
async def list_benchmarks(request: Request) -> HTMLResponse:
    """List the published benchmarks; a damaged one is listed with its error."""
    state = state_of(request)
    rows = [
        {"name": name, "index": None, "fault": str(index)}
        if isinstance(index, KgymError)
        else {"name": name, "index": index, "fault": None}
        for name, index in await state.benchmarks.list()
    ]
    return state.rendering.page(request, "benchmarks.html", title="Benchmarks", benchmarks=rows)


@readers.get("/benchmarks/{name}")
async def show_board(request: Request, name: str) -> HTMLResponse:
    """Show the leaderboard for the chosen bugs and setups."""
    return await _page(request, name, "benchmark.html", f"Benchmark {name}", board.board)


@readers.get("/benchmarks/{name}/bugs")
async def list_bugs(request: Request, name: str) -> HTMLResponse:
    """List a benchmark's bugs, hardest first."""
    return await _page(request, name, "benchmark_bugs.html", f"Bugs of {name}", board.bugs)


@readers.get("/benchmarks/{name}/compare")
async def compare(request: Request, name: str) -> HTMLResponse:
    """Compare two setups."""
    return await _page(request, name, "benchmark_compare.html", "Compare", board.compared)


@readers.get("/benchmarks/{name}/query")
async def show_query(request: Request, name: str) -> HTMLResponse:
    """Show the answer to the research query in the address."""
    template, title = "benchmark_query.html", f"Query {name}"
    async with state_of(request).asking:
        # Not kept: an answer may have thousands of groups.
        return await _page(request, name, template, title, board.queried, kept=False)


@readers.post("/benchmarks/{name}/query", response_model=None)
async def answer_query(request: Request, name: str, query: Query) -> Response:
    """Answer a research query as JSON, or CSV if the request accepts only that."""
    benchmark = await state_of(request).benchmarks.get(name)
    if isinstance(benchmark, Reading):
        # Shared with pages: a client that leaves must not end it.
        benchmark = await asyncio.shield(benchmark.task)
    async with state_of(request).asking:
        answer = await asyncio.to_thread(queries.answer, benchmark.table, benchmark.facts, query)
    if request.headers.get("accept") == "text/csv":
        return Response(answer.csv, media_type="text/csv; header=present")
    return Response(answer.model_dump_json(), media_type="application/json")


@readers.get("/benchmarks/{name}/bugs/{bug}")
async def show_bug(request: Request, name: str, bug: str) -> HTMLResponse:
    """Show a bug, its fix and the attempts on it."""
    benchmark = await state_of(request).benchmarks.get(name)
    # While the benchmark is being read, the page only shows the progress.
    fix = None if isinstance(benchmark, Reading) else await benchmark.bug(bug)
    return await _page(
        request, name, "benchmark_bug.html", f"Bug {bug[:12]}", board.bug, bug, fix=fix
    )


@readers.get("/benchmarks/{name}/bugs/{bug}/attempts/{setup}/{run}")
async def show_attempt(request: Request, name: str, bug: str, setup: int, run: int) -> HTMLResponse:
    """Show an attempt's patch beside the developers'."""
    state = state_of(request)
    benchmark = await state.benchmarks.get(name)
    title = f"Run {run} on {bug[:12]}"
    if isinstance(benchmark, Reading):
        return _loading(request, name, title, benchmark)
    attempt, fix = await benchmark.attempt(bug, setup, run), await benchmark.bug(bug)
    return state.rendering.page(
        request,
        "benchmark_attempt.html",
        title=title,
        name=name,
        attempt=attempt,
        fix=fix,
        links=LiveLinks(name, BoardQuery()),
        words=board,
    )


def _loading(request: Request, name: str, title: str, reading: Reading) -> HTMLResponse:
    return state_of(request).rendering.page(
        request, "benchmark_loading.html", title=title, name=name, reading=reading
    )


async def _page(
    request: Request,
    name: str,
    template: str,
    title: str,
    make: Callable[..., dict[str, Any]],
    *of: str,
    kept: bool = True,
    **more: Any,
) -> HTMLResponse:
    """Show a page of a benchmark, or the progress of reading it."""
    state, query = state_of(request), BoardQuery.read(request.query_params)
    benchmark = await state.benchmarks.get(name)
    if isinstance(benchmark, Reading):
        return _loading(request, name, title, benchmark)
    context: dict[str, Any] = {"title": title, "name": name}
    context |= {"query": query, "links": LiveLinks(name, query), "attributes": ATTRIBUTES}
    context |= {"words": board, "fault": None, **more}
    try:
        # In a thread: numpy releases the interpreter's lock, so the event loop continues.
        ready = partial(state.ready.get, benchmark, query, make) if kept else None
        context |= await asyncio.to_thread(ready or partial(make, benchmark, query), *of)
    except NotFound:
        raise
    except UserError as error:
        context |= _without_figures(benchmark) | {"fault": str(error)}
    return state.rendering.page(request, template, **context)


def _without_figures(benchmark: Benchmark) -> dict[str, Any]:
    """Return the contents of a page whose address has an invalid value."""
    return {
        "benchmark": benchmark,
        "k": 1,
        "most": 1,
        "setups": benchmark.setups,
        "first": None,
        "second": None,
        **board.setup_options(benchmark),
    }


class LiveLinks:
    """Links to a benchmark's pages that keep the selection of bugs and setups.

    `site.FileLinks` has the same methods, for static pages.
    """

    is_static = False

    def __init__(self, name: str, query: BoardQuery) -> None:
        self._path = f"/benchmarks/{quote(name)}"
        self._query = query

    def board(self, **changed: str | None) -> str:
        """Return the leaderboard, with some of the selection changed."""
        return self._query.address(self._path, **{"cursor": None, **changed})

    def bugs(self, **changed: str | None) -> str:
        """Return the list of bugs."""
        return self._query.address(f"{self._path}/bugs", **{"cursor": None, **changed})

    def query(self) -> str:
        """Return the research query."""
        return self._query.address(f"{self._path}/query", cursor=None)

    def bug(self, name: str) -> str:
        """Return the page of a bug."""
        return f"{self._path}/bugs/{quote(name, safe='')}"

    def compare(self, first: int | None = None, second: int | None = None) -> str:
        """Return the comparison of two setups, by their numbers."""
        given = {"first": None if first is None else str(first)}
        given["second"] = None if second is None else str(second)
        return self._query.address(f"{self._path}/compare", **{"cursor": None, **given})

    def attempt(self, bug: str, setup: int, run: int) -> str:
        """Return the page of an attempt."""
        return f"{self.bug(bug)}/attempts/{setup}/{run}"
