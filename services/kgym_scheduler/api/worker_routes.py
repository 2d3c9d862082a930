"""What workers ask, /v1/worker: any number of calls in one request."""

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from starlette.types import Receive, Scope, Send

from kgym.api.worker_calls import WORKER_ID
from kgym.api.worker_requests import (
    STAY_SECONDS,
    STEP_WAITS,
    Answer,
    Answers,
    Calls,
    ClaimCall,
    FinishCall,
    HoldCall,
    LeaveCall,
    ReleaseCall,
    ReportCall,
    WorkerCall,
)
from kgym_scheduler.api.access import needs
from kgym_scheduler.api.express_requests import Stop
from kgym_scheduler.api.problems import documented
from kgym_scheduler.api.strict_requests import StrictRoute
from kgym_scheduler.database import tokens
from kgym_scheduler.scheduler import Scheduler


class _Route(StrictRoute):
    values = 300_000  # the results of many steps


router = APIRouter(prefix="/v1", route_class=_Route, dependencies=[needs(tokens.Scope.WORKER)])


@router.post(
    "/worker/calls",
    summary="Claim, report, finish, release, hold",
    tags=["workers"],
    response_model=Answers,
    responses=documented(413, 415),
)
async def calls(request: Request, body: Annotated[Calls, Body()]) -> Response:
    """Answer a worker's calls, in order. Each is idempotent: where this fails, repeat it."""
    return await _answers(request.app.state.scheduler, body)


async def _plain_calls(request: Request, body: Calls, _: int) -> Response | None:
    return await _answers(request.app.state.scheduler, body)


CALLS = Stop("/v1/worker/calls", tokens.Scope.WORKER, Calls, _plain_calls)


async def _answers(scheduler: Scheduler, body: Calls) -> Response:
    answers = await asyncio.gather(*(_answer(scheduler, call) for call in body.calls))
    return Response(Answers(answers=list(answers)).model_dump_json(), media_type="application/json")


@router.get("/worker/stay", include_in_schema=False)
async def stay(
    request: Request, worker: Annotated[str, Query(max_length=200, pattern=WORKER_ID)]
) -> Response:
    """Answer a byte now and then, until the worker ends: its connection does with it.

    And a word when a step waits that the worker has room for. It is not in the OpenAPI document:
    it is for workers only, and it never ends.
    """
    return _Stay(request.app.state.scheduler, worker)


class _Stay(Response):
    """The answer that lasts as long as the worker, or until the scheduler stops."""

    media_type = "text/plain"

    def __init__(self, scheduler: Scheduler, worker: str) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._scheduler = scheduler
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        news = asyncio.Event()
        scheduler, head = self._scheduler, {"status": 200, "headers": self.raw_headers}
        with (
            scheduler.dead_workers.watch(self._worker) as stopping,
            scheduler.idle_workers.connected(self._worker, news.set),
        ):
            await send({"type": "http.response.start", **head})
            ends = [asyncio.create_task(_gone(receive)), asyncio.create_task(stopping.wait())]
            for task in ends:
                task.add_done_callback(lambda _: news.set())
            try:
                await _say(b"\n", send)
                while not any(task.done() for task in ends):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STAY_SECONDS):
                            await news.wait()
                    await _say(STEP_WAITS if news.is_set() else b"\n", send)
                    news.clear()
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})


async def _say(word: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": word, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(scheduler: Scheduler, call: WorkerCall) -> Answer:
    match call:
        case ClaimCall():
            return await scheduler.claim(call.claim)
        case ReportCall():
            return await scheduler.report(call.lease, call.log, call.progress)
        case FinishCall():
            return await scheduler.finish(call.lease, call.ending)
        case ReleaseCall():
            return await scheduler.release(call.lease)
        case HoldCall():
            return await scheduler.hold(call.lease, call.name)
        case LeaveCall():
            await scheduler.leave(call.worker)
            return True
