"""Calls of workers, /v1/worker: any number in one request."""

import asyncio
from typing import Annotated

from fastapi import Body, Query, Request, Response
from starlette.types import Receive, Scope, Send

from kgym.api.worker_calls import WORKER_ID
from kgym.api.worker_requests import STAY_SECONDS, Answer, Answers, Calls, WorkerCall
from kgym.web import routing
from kgym.web.scopes import Scope as TokenScope
from kgym.web.strict_requests import StrictRoute
from kgym_scheduler.scheduler import Scheduler


class _Route(StrictRoute):
    values = 300_000  # the results of many steps


router = routing.router(TokenScope.WORKER, "workers", kind=_Route)
# How the paths of these routes begin.
PATHS = "/v1/worker/"


@router.post(
    "/worker/calls", **routing.described("Claim, report, finish, release, hold", Answers, 413, 415)
)
async def calls(request: Request, body: Annotated[Calls, Body()]) -> Response:
    """Answer a worker's calls, in order. All are idempotent: if the request fails, repeat it."""
    scheduler: Scheduler = request.app.state.scheduler
    answers = await asyncio.gather(*(_answer(scheduler, call) for call in body.calls))
    return Response(Answers(answers=list(answers)).model_dump_json(), media_type="application/json")


@router.get("/worker/stay", include_in_schema=False)
async def stay(
    request: Request, worker: Annotated[str, Query(max_length=200, pattern=WORKER_ID)]
) -> Response:
    """Send a byte every STAY_SECONDS until the worker ends, which closes the connection."""
    # Not in the OpenAPI document: it is for workers only, and its answer never ends.
    return _Stay(request.app.state.scheduler, worker)


class _Stay(Response):
    """A response that lasts until the worker disconnects or the scheduler stops."""

    media_type = "text/plain"

    def __init__(self, scheduler: Scheduler, worker: str) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._scheduler = scheduler
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheduler, head = self._scheduler, {"status": 200, "headers": self.raw_headers}
        with scheduler.dead_workers.watch(self._worker) as stopping:
            await send({"type": "http.response.start", **head})
            ends = [asyncio.create_task(_gone(receive)), asyncio.create_task(stopping.wait())]
            try:
                done = set[asyncio.Task[object]]()
                while not done:
                    await send({"type": "http.response.body", "body": b"\n", "more_body": True})
                    done, _ = await asyncio.wait(
                        ends, timeout=STAY_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(scheduler: Scheduler, call: WorkerCall) -> Answer:
    # A call is named like its method, and has the method's arguments as fields.
    arguments = {name: getattr(call, name) for name in type(call).model_fields if name != "call"}
    answer: Answer | None = await getattr(scheduler, call.call)(**arguments)
    return True if answer is None else answer
