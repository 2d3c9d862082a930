"""`WorkerCalls` over HTTP.

Calls made while requests are under way are sent together in the next one, so a busy worker needs
one request for dozens of steps.
"""

import asyncio
import contextlib
from collections import deque
from http import HTTPStatus
from typing import Self, TypeVar
from uuid import UUID

import httpx

from kgym import tasks
from kgym.api.jobs import Progress
from kgym.api.worker_calls import AttemptEnding, Claim, Claimed
from kgym.api.worker_requests import (
    CALLS,
    PATH,
    STAY_SECONDS,
    Answer,
    Answers,
    ClaimCall,
    EndedCall,
    FinishCall,
    HoldCall,
    LeaveCall,
    ReleaseCall,
    ReportCall,
    WorkerCall,
)
from kgym.client import protocol
from kgym.client.protocol import Refused
from kgym.errors import InfrastructureError

RECONNECT_SECONDS = 1.0
STAY_TIMEOUT = httpx.Timeout(60, connect=5, read=3 * STAY_SECONDS, pool=None)
# Maximum of a request's body, unless a single call is longer.
REQUEST_BYTES = 8 << 20
# Requests under way at the same time: a claim does not wait for the upload of another result.
REQUESTS = 2

T = TypeVar("T")


class HttpWorkerCalls:
    """`WorkerCalls` over HTTP, to the scheduler at `base_url`, with a worker's token or none."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.AsyncClient(**protocol.options(base_url, token))
        self._waiting: deque[tuple[str, asyncio.Future[Answer]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close the connections."""
        await tasks.end(self._senders)
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def claim(self, claim: Claim) -> Claimed:
        """Claim queued steps for the worker."""
        return _as(Claimed, await self._call(ClaimCall(claim=claim)))

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and send log and progress; return False if the lease is lost."""
        return _as(bool, await self._call(ReportCall(lease=lease, log=log, progress=progress)))

    async def finish(self, lease: UUID, ending: AttemptEnding) -> bool:
        """End the attempt; return False if the lease is lost."""
        return _as(bool, await self._call(FinishCall(lease=lease, ending=ending)))

    async def release(self, lease: UUID) -> bool:
        """Release the step unfinished; return False if the lease is lost."""
        return _as(bool, await self._call(ReleaseCall(lease=lease)))

    async def hold(self, lease: UUID, name: str) -> bool:
        """Lock a name for the attempt; return False if it is locked or the lease is lost."""
        return _as(bool, await self._call(HoldCall(lease=lease, name=name)))

    async def ended(self, lease: UUID) -> bool:
        """Return whether the attempt of any worker's lease has ended."""
        return _as(bool, await self._call(EndedCall(lease=lease)))

    async def leave(self, worker: str) -> None:
        """Report that the worker has ended."""
        await self._call(LeaveCall(worker=worker))

    async def stay(self, worker: str) -> None:
        """Keep one request open until cancelled; reconnect if it is lost.

        The kernel closes the socket when this process is killed, which tells the scheduler.
        """
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async with self._http.stream(
                    "GET", "/worker/stay", params={"worker": worker}, timeout=STAY_TIMEOUT
                ) as response:
                    async for _ in response.aiter_raw():
                        pass
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _call(self, call: WorkerCall) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((call.model_dump_json(), future))
        if len(self._senders) < REQUESTS:
            self._senders.add(asyncio.create_task(self._send_all()))
        return await future

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send(self._next())
        finally:  # no await in between: a new call must not rely on this sender
            self._senders -= {asyncio.current_task()}

    def _next(self) -> list[tuple[str, asyncio.Future[Answer]]]:
        calls = [self._waiting.popleft()]
        size = len(calls[0][0])
        while self._waiting and len(calls) < CALLS:
            size += len(self._waiting[0][0])
            if size > REQUEST_BYTES:
                break
            calls.append(self._waiting.popleft())
        return calls

    async def _send(self, calls: list[tuple[str, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._request([body for body, _ in calls])
        except Refused as error:
            if len(calls) > 1:  # send each alone to find the refused one
                for call in calls:
                    await self._send([call])
            else:
                _fail(calls, error)
        except Exception as error:  # noqa: BLE001 - the callers raise it
            _fail(calls, error)
        else:
            for (_, future), answer in zip(calls, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _request(self, bodies: list[str]) -> list[Answer]:
        body = f'{{"calls":[{",".join(bodies)}]}}'
        try:
            response = await self._http.post(
                PATH, content=body, headers={"Content-Type": "application/json"}
            )
        except httpx.TransportError as error:
            # Not retried here: a repeated claim must be marked `again`, as the first may have
            # been answered.
            raise protocol.unreachable(self._http.base_url, error) from error
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:  # from a proxy in between
            raise InfrastructureError("scheduler_busy", "the scheduler refuses requests for now")
        return Answers.model_validate_json(protocol.checked(response).content).answers


def _fail(calls: list[tuple[str, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(error)


def _as(kind: type[T], answer: Answer) -> T:
    if not isinstance(answer, kind):
        raise TypeError(f"the scheduler answered {answer!r}, not {kind.__name__}")
    return answer
