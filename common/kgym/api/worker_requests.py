"""Bodies of workers' requests, each with any number of calls."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from kgym.api.jobs import Progress
from kgym.api.steps import Strict
from kgym.api.worker_calls import LOG, AttemptEnding, Claim, Claimed, WorkerId

# Maximum number of calls in one request: the scheduler answers all of them together.
CALLS = 100


PATH = "/worker/calls"


# Interval of the bytes that the scheduler sends on a worker's open connection.
STAY_SECONDS = 10.0


class ClaimCall(Strict):
    """A worker\'s request for `WorkerCalls.claim`, with its arguments."""

    call: Literal["claim"] = "claim"
    claim: Claim


class ReportCall(Strict):
    """A worker\'s request for `WorkerCalls.report`, with its arguments."""

    call: Literal["report"] = "report"
    lease: UUID
    log: str = Field(max_length=LOG)
    progress: Progress | None


class FinishCall(Strict):
    """A worker\'s request for `WorkerCalls.finish`, with its arguments."""

    call: Literal["finish"] = "finish"
    lease: UUID
    ending: AttemptEnding


class ReleaseCall(Strict):
    """A worker\'s request for `WorkerCalls.release`, with its arguments."""

    call: Literal["release"] = "release"
    lease: UUID


class HoldCall(Strict):
    """A worker\'s request for `WorkerCalls.hold`, with its arguments."""

    call: Literal["hold"] = "hold"
    lease: UUID
    name: str = Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")


class EndedCall(Strict):
    """A worker\'s request for `WorkerCalls.ended`, with its arguments."""

    call: Literal["ended"] = "ended"
    lease: UUID


class LeaveCall(Strict):
    """A worker\'s request for `WorkerCalls.leave`, with its arguments."""

    call: Literal["leave"] = "leave"
    worker: WorkerId


WorkerCall = Annotated[
    ClaimCall | ReportCall | FinishCall | ReleaseCall | HoldCall | EndedCall | LeaveCall,
    Field(discriminator="call"),
]


Answer = Claimed | bool


class Calls(Strict):
    """A request's body: calls of one worker."""

    calls: list[WorkerCall] = Field(min_length=1, max_length=CALLS)


class Answers(Strict):
    """The answers, in the order of the calls; `leave` answers true."""

    answers: list[Answer]
