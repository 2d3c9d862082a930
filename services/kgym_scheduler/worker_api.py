"""What workers ask, /v1/worker: any number of calls in one request."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from kgym.dispatch import (
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
from kgym_scheduler.auth import needs
from kgym_scheduler.core import Scheduler
from kgym_scheduler.problems import documented
from kgym_scheduler.strict import StrictRoute
from kgym_scheduler.tokens import Scope


class _Route(StrictRoute):
    values = 300_000  # the results of many steps


router = APIRouter(prefix="/v1", route_class=_Route, dependencies=[needs(Scope.WORKER)])


@router.post(
    "/worker/calls",
    summary="Claim, report, finish, release, hold",
    tags=["workers"],
    response_model=Answers,
    responses=documented(413, 415),
)
async def calls(request: Request, body: Annotated[Calls, Body()]) -> Response:
    """Answer a worker's calls, in order. Each is idempotent: where this fails, repeat it."""
    scheduler: Scheduler = request.app.state.scheduler
    answers = await asyncio.gather(*(_answer(scheduler, call) for call in body.calls))
    return Response(Answers(answers=list(answers)).model_dump_json(), media_type="application/json")


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
