"""The application: /v1/runs, over an `Agent`."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Body, Depends, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import (
    CallView,
    Event,
    Resumption,
    RunFilter,
    RunPage,
    RunRequest,
    RunState,
    RunView,
)
from kgym.api.agent.steps import CallPage, CallViewPage, RunStep
from kgym.api.jobs import DIGITS
from kgym.errors import UserError
from kgym.web.callers import Tokens, caller_of
from kgym.web.event_stream import EventStream, LastEventId
from kgym.web.request_limits import RequestLimits
from kgym.web.routing import add_routes, as_json, as_json_list, described, key_header, router
from kgym.web.scopes import Scope
from kgym.web.service import Service
from kgym_crashfixer.api.metrics import Metrics
from kgym_crashfixer.runs.agent import Agent


async def _agent(request: Request) -> Agent:  # a plain function runs in a thread
    agent: Agent = request.app.state.agent
    return agent


Core = Annotated[Agent, Depends(_agent)]
RunId = Annotated[int, Path(ge=1, lt=1 << 62, description="of the run, from 1"), DIGITS]
NodeName = Annotated[str, Query(max_length=500)]
Number = Annotated[int, Path(ge=1, le=10_000, description="of the fix, by rank, from 1"), DIGITS]
readers = router(Scope.READ)
submitters = router(Scope.SUBMIT, "runs")


def create_app(agent: Agent, tokens: Tokens, limits: RequestLimits | None = None) -> Service:
    """Return the application for an agent, which the caller starts and stops."""
    app = Service(
        "kGymSuite agent",
        "Runs search for the fix of a bug, with a language model and the scheduler. "
        "Every error is a problem document (RFC 9457), `application/problem+json`.",
        tokens=tokens,
        limits=limits or RequestLimits(),
        metrics=Metrics(agent),
        models=[Event],
    )
    app.state.agent = agent
    add_routes(app, (readers, submitters))
    app.add_pages()
    app.guard()
    return app


@submitters.post("/runs", status_code=201, **described("Begin a run", RunView, 413, 415))
async def start(
    http: Request,
    agent: Core,
    wanted: Annotated[RunRequest, Body()],
    idempotency_key: Annotated[
        str | None, key_header("A repeated request with the same key begins no second run")
    ] = None,
) -> Response:
    """Begin a search for a fix."""
    # A caller elsewhere could have any folder of this machine read.
    if wanted.folder is not None:
        message = "`folder` is for commands on the agent's machine; send the files as `bundle`"
        raise UserError("folder_not_allowed", message)
    run, new = await agent.begin(wanted, idempotency_key, caller_of(http).name)
    view = await agent.show(run)
    return as_json(view, 201 if new else 200, {"Location": f"/v1/runs/{run}"})


@readers.get("/runs", tags=["runs"], **described("List runs", RunPage))
async def page(
    agent: Core,
    cursor: Annotated[Annotated[int, Field(ge=1, lt=1 << 62), DIGITS] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=100), DIGITS] = 50,
    state: Annotated[RunState | None, Query()] = None,
    bug: Annotated[str | None, Query(max_length=200)] = None,
    strategy: Annotated[str | None, Query(max_length=200)] = None,
    model: Annotated[str | None, Query(max_length=500)] = None,
    submitter: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Show runs, newest first. Pass `next` as `cursor` for the next page."""
    wanted = RunFilter(state=state, bug=bug, strategy=strategy, model=model, submitter=submitter)
    return as_json(await agent.page(cursor, limit, wanted))


@readers.get("/runs/{run}", tags=["runs"], **described("Show a run", RunView, 404))
async def show(agent: Core, run: RunId) -> Response:
    """Show a run: its debug cycles, cost and fixes so far."""
    return as_json(await agent.show(run))


@submitters.post("/runs/{run}/stop", **described("Stop a run", RunView, 404, 409))
async def stop(http: Request, agent: Core, run: RunId) -> Response:
    """Stop a run within about a second. Only its submitter and `admin` may."""
    await agent.stop(run, caller_of(http).owner)
    return as_json(await agent.show(run))


@submitters.post("/runs/{run}/resume", **described("Resume a run", RunView, 404, 409, 413, 415))
async def resume(
    http: Request, agent: Core, run: RunId, wanted: Annotated[Resumption | None, Body()] = None
) -> Response:
    """Continue a run that is not running, optionally with other limits."""
    await agent.resume(run, wanted.limits if wanted else None, caller_of(http).owner)
    return as_json(await agent.show(run))


@readers.get(
    "/runs/{run}/nodes/{name}", tags=["runs"], **described("Show a debug cycle", Node, 404)
)
async def node(agent: Core, run: RunId, name: Annotated[str, Path(max_length=500)]) -> Response:
    """Show a debug cycle with its hypotheses, candidates and results."""
    return as_json(await agent.node(run, name))


@readers.get(
    "/runs/{run}/calls", tags=["runs"], **described("Show questions and answers", CallViewPage, 404)
)
async def calls(
    agent: Core,
    run: RunId,
    node: Annotated[str | None, Query(max_length=500)] = None,
    cursor: Annotated[int, Query(ge=0, lt=1 << 31), DIGITS] = 0,
    limit: Annotated[int, Query(ge=1, le=100), DIGITS] = 50,
) -> Response:
    """Show the model's questions and answers, of a debug cycle or of the whole run.

    A page ends after a megabyte. Pass `next` as `cursor` for the next page.
    """
    return as_json(await agent.call_page(run, node, cursor, limit))


@readers.get(
    "/runs/{run}/calls/{name:path}",
    tags=["runs"],
    **described("Show a question and its answer", CallView, 404),
)
async def call(agent: Core, run: RunId, name: Annotated[str, Path(max_length=500)]) -> Response:
    """Show one question to the model, and its answer."""
    return as_json(await agent.call(run, name))


@readers.get(
    "/runs/{run}/steps",
    tags=["runs"],
    **described("Show the steps of a debug cycle", list[RunStep], 404),
)
async def show_steps(agent: Core, run: RunId, node: NodeName) -> Response:
    """Show its questions, checks, kernels and source look-ups, in the order in which they began."""
    return as_json_list(await agent.steps(run, node))


@readers.get(
    "/runs/{run}/search", tags=["runs"], **described("Search questions and answers", CallPage, 404)
)
async def search(
    agent: Core,
    run: RunId,
    text: Annotated[str | None, Query(max_length=200)] = None,
    node: Annotated[str | None, Query(max_length=500)] = None,
    purpose: Annotated[str | None, Query(max_length=30)] = None,
    cursor: Annotated[int, Query(ge=0, lt=1 << 31), DIGITS] = 0,
    limit: Annotated[int, Query(ge=1, le=100), DIGITS] = 50,
) -> Response:
    """Show questions that contain a text, or whose answers do; without a text, all of them.

    A request searches at most 200 questions: pass `next` as `cursor` to continue.
    """
    return as_json(await agent.search(run, text, node, purpose, cursor, limit))


@readers.get(
    "/runs/{run}/fixes/{number}/patch",
    tags=["fixes"],
    **described("Show a fix", PlainTextResponse, 404),
)
async def patch(
    agent: Core,
    run: RunId,
    number: Number,
    author: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Show a fix as a mail for `git am`."""
    return PlainTextResponse(await agent.patch(run, number, author))


@readers.get(
    "/runs/{run}/fixes/{number}/report",
    tags=["fixes"],
    **described("Show the evidence for a fix", Report, 404),
)
async def report(agent: Core, run: RunId, number: Number) -> Response:
    """Show the evidence for a fix, also as Markdown."""
    return as_json(await agent.report(run, number))


@readers.get("/runs/{run}/events", tags=["runs"], **described("Follow a run", EventStream, 404))
async def events(
    http: Request, agent: Core, run: RunId, last_event_id: LastEventId = 0
) -> EventStream:
    """Send past events of the run, then new ones until it ends."""
    with contextlib.ExitStack() as slot:
        slot.enter_context(http.app.streams.opened(caller_of(http).name))
        await agent.show(run)
        return EventStream(_event_stream(agent, run, last_event_id), slot.pop_all())


async def _event_stream(agent: Agent, run: int, last: int) -> AsyncIterator[bytes]:
    async for event in agent.follow(run, last):
        data = event.model_dump_json()
        yield f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n".encode()
    yield b"event: end\ndata: {}\n\n"
