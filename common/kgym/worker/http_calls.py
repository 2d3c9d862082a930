"""A worker's way to the scheduler over HTTP: its calls, and the client that sends them.

Calls that are made while requests are under way go out together in the next
one, so a busy worker needs a request for dozens of steps.
"""

import asyncio
import contextlib
from collections import deque
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx

from kgym.api.jobs import Progress
from kgym.api.worker_calls import Assignment, AttemptEnding, Claim, Claimed, ConnectedWorker
from kgym.api.worker_requests import (
    CALLS,
    PATH,
    STAY_SECONDS,
    STEP_WAITS,
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
from kgym.worker.http_connection import HttpConnection

RECONNECT_SECONDS = 1.0
REQUEST_BYTES = 8 << 20
"""Of a request's body, unless a single call is longer."""
REQUESTS = 2
"""Under way at the same time: a claim does not wait for another step's result to arrive."""

T = TypeVar("T")


class HttpWorkerCalls:
    """`WorkerCalls` over HTTP, to the scheduler at `base_url`, with a worker's token or none."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        options = protocol.options(base_url, token)
        self._url: httpx.URL = options["base_url"]
        self._headers: dict[str, str] = options["headers"]
        self._wires: list[HttpConnection] = []
        """Those that no sender uses now."""
        self._waiting: deque[tuple[str, asyncio.Future[Answer]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close the connections."""
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        for wire in self._wires:
            wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def claim(self, claim: Claim) -> Claimed:
        """Lease queued steps to the worker."""
        return _as(Claimed, await self._call(ClaimCall(claim=claim)))

    async def report(self, lease: UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and pass on what is new; False if the lease is stale."""
        return _as(bool, await self._call(ReportCall(lease=lease, log=log, progress=progress)))

    async def finish(self, lease: UUID, ending: AttemptEnding) -> bool:
        """End the attempt; False if the lease is stale."""
        return _as(bool, await self._call(FinishCall(lease=lease, ending=ending)))

    async def release(self, lease: UUID) -> bool:
        """Give the step back unfinished; False if the lease is stale."""
        return _as(bool, await self._call(ReleaseCall(lease=lease)))

    async def hold(self, lease: UUID, name: str) -> bool:
        """Let the attempt hold a name; False if another's holds it, or the lease is stale."""
        return _as(bool, await self._call(HoldCall(lease=lease, name=name)))

    async def ended(self, lease: UUID) -> bool:
        """Tell whether the attempt of a lease has ended, whosever it was."""
        return _as(bool, await self._call(EndedCall(lease=lease)))

    async def leave(self, worker: str) -> None:
        """Say that the worker has ended."""
        await self._call(LeaveCall(worker=worker))

    async def stay(self, worker: str, listener: ConnectedWorker) -> None:
        """Be connected until cancelled; a connection that is lost is made again."""
        wire = HttpConnection(self._url, self._headers, protocol.TIMEOUT.connect or 0)
        path = f"{self._url.path}/worker/stay?worker={quote(worker, safe='')}"
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                await wire.listen(path, _Lines(listener).hear, 3 * STAY_SECONDS)
            listener.disconnected()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _call(self, call: WorkerCall) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((call.model_dump_json(), future))
        if len(self._senders) < REQUESTS:
            self._senders.add(asyncio.create_task(self._send_all()))
        return await future

    async def _send_all(self) -> None:
        connect = protocol.TIMEOUT.connect or 0
        wire = (
            self._wires.pop() if self._wires else HttpConnection(self._url, self._headers, connect)
        )
        try:
            while self._waiting:
                await self._send(wire, self._next())
        finally:  # at once: a call that comes now must not count on this sender
            self._senders -= {asyncio.current_task()}
            self._wires.append(wire)

    def _next(self) -> list[tuple[str, asyncio.Future[Answer]]]:
        calls = [self._waiting.popleft()]
        size = len(calls[0][0])
        while self._waiting and len(calls) < CALLS:
            size += len(self._waiting[0][0])
            if size > REQUEST_BYTES:
                break
            calls.append(self._waiting.popleft())
        return calls

    async def _send(
        self, wire: HttpConnection, calls: list[tuple[str, asyncio.Future[Answer]]]
    ) -> None:
        try:
            answers = await self._request(wire, [body for body, _ in calls])
        except Refused as error:
            if len(calls) > 1:  # find out which of them it is
                for call in calls:
                    await self._send(wire, [call])
            else:
                _fail(calls, error)
        except Exception as error:  # noqa: BLE001 - those who wait raise it
            _fail(calls, error)
        else:
            for (_, future), answer in zip(calls, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _request(self, wire: HttpConnection, bodies: list[str]) -> list[Answer]:
        body = f'{{"calls":[{",".join(bodies)}]}}'.encode()
        try:
            reply = await wire.post(f"{self._url.path}{PATH}", body, protocol.TIMEOUT.read or 0)
        except (OSError, TimeoutError) as error:
            raise protocol.unreachable(self._url, error) from error
        if reply.status == HTTPStatus.TOO_MANY_REQUESTS:  # of a proxy on the way
            raise InfrastructureError("scheduler_busy", "the scheduler takes no more requests now")
        if reply.status != HTTPStatus.OK:
            request = httpx.Request("POST", self._url.join(f"{self._url.path}{PATH}"))
            protocol.checked(
                httpx.Response(
                    reply.status, headers=reply.headers, content=reply.content, request=request
                )
            )
        return Answers.model_validate_json(reply.content).answers


class _Lines:
    """Reads the lines of a connection that is kept open; they come in pieces."""

    def __init__(self, listener: ConnectedWorker) -> None:
        self._listener = listener
        self._begun = b""

    def hear(self, said: bytes) -> None:
        *lines, self._begun = (self._begun + said).split(b"\n")
        for line in lines:
            if line == STEP_WAITS:
                self._listener.step_waits()
            elif line:
                self._listener.handed(Assignment.model_validate_json(line))


def _fail(calls: list[tuple[str, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(error)


def _as(kind: type[T], answer: Answer) -> T:
    if not isinstance(answer, kind):
        raise TypeError(f"the scheduler answered {answer!r}, not {kind.__name__}")
    return answer
