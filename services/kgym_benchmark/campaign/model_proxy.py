"""The proxy to a model's endpoint: an agent's only network access, where tokens are counted.

The agent calls http://127.0.0.1:8400 and gets the endpoint's answer. The key is added here, so the
agent does not have it. Only plain requests to its model are forwarded (`model_request`). Tokens are
read from the answers, and priced as in the campaign; at the limit, requests are refused. Only a few
requests run concurrently, so that an agent cannot send a thousand before the first is counted. Each
answer is durable before the agent gets it: a killed attempt starts again, and its repeated requests
are answered from the tape.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Self

import httpx
from pydantic import Field

from kgym.api.agent.model_key import QUOTED, quotes_key, without_key
from kgym.api.steps import Number, Strict
from kgym.bench.campaign import ModelAccess
from kgym.errors import UserError
from kgym.host.scratch import scratch
from kgym.web.connection_limits import ConnectionLimits
from kgym.web.server import serving
from kgym_benchmark.campaign.model_request import ModelRequest, model_names, rebuilt
from kgym_benchmark.campaign.token_use import Used, is_reply, used
from kgym_benchmark.kenv.environment import MODEL_SOCKET

# Concurrent requests, from reading the body to the answer.
AT_ONCE = 4
# Maximum bytes of an answer.
MOST = 64 << 20
SECONDS = 1800.0
# How long to wait for running requests after the agent has ended: they are charged anyway.
LAST_SECONDS = 300.0
# The same after an interrupt of the campaign: answers that arrive in time are not paid for twice.
HASTE_SECONDS = 5.0
_CONNECTIONS = ConnectionLimits(connections=128, body_seconds=SECONDS, stall_seconds=SECONDS)
_KEPT = {"content-type", "retry-after"}
# Maximum size of a tape.
TAPE_BYTES = 1 << 30
# Maximum size of a request's body.
QUESTION_BYTES = 16 << 20
_Answer = tuple[int, dict[str, str], bytes]
_JSON = {"content-type": "application/json"}


class Answered(Strict):
    """A request with its answer: a line of a tape."""

    question: str = Field(description="SHA-256 of its path and body")
    status: int
    headers: dict[str, str]
    body: str = Field(description="Base64")
    used: Used | None = Field(description="null: not in the answer")
    seconds: Number


class ModelTape:
    """The file of a model's answers to an attempt; those of an earlier start are replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, list[int]] = {}
        self._size = 0

    def open(self) -> None:
        """Index the answers; cut off an incomplete last line, left by a killed process."""
        if not self._path.exists():
            return
        with self._path.open("rb+") as file:
            for line in file:
                if line.endswith(b"\n"):
                    answered = Answered.model_validate_json(line)
                    self._places.setdefault(answered.question, []).append(self._size)
                    self._size += len(line)
            file.truncate(self._size)

    @property
    def full(self) -> bool:
        """Whether the tape has reached its maximum size."""
        return self._size >= TAPE_BYTES

    def answer(self, question: str, number: int) -> Answered | None:
        """Return the answer to the `number`-th occurrence of a request, from 0."""
        # An agent may send the same request several times: each has an answer of its own.
        places = self._places.get(question, [])
        if number >= len(places):
            return None
        with self._path.open("rb") as file:
            file.seek(places[number])
            return Answered.model_validate_json(file.readline())

    def append(self, answered: Answered) -> None:
        """Append an answer; it is durable when this returns."""
        line = answered.model_dump_json().encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)


class ModelProxy:
    """Context manager: serve a model's API on a Unix socket in `folder`; record tokens and cost."""

    def __init__(
        self, model: str, access: ModelAccess, key: str | None, tape: Path, limit: float | None
    ) -> None:
        # Set when a request was refused because the budget is used up.
        self.exhausted = asyncio.Event()
        self.refusal: str | None = None
        self.seconds = 0.0
        self._names = model_names(model).union(access.names)
        self._access = access
        self._key = key
        self._tape = ModelTape(tape)
        self._limit = limit
        self._tokens = 0
        self._dollars = 0.0
        self._asked = Counter[str]()
        self._unknown = 0
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._under_way = set[asyncio.Task[_Answer]]()
        self._ended = False
        self._stack = contextlib.AsyncExitStack()

    @property
    def tokens(self) -> int | None:
        """Input and output tokens; None if an answer did not contain its usage."""
        return None if self._unknown else self._tokens

    @property
    def dollars(self) -> float | None:
        """The cost of the tokens; None if it is unknown."""
        return None if self._unknown or self._access.prices is None else self._dollars

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            self.folder = stack.enter_context(scratch("model")) / "model"
            await asyncio.to_thread(self._open)
            await asyncio.to_thread(self._tape.open)
            listening = socket.socket(socket.AF_UNIX)
            stack.callback(listening.close)
            listening.bind(str(self.folder / MODEL_SOCKET))
            await asyncio.to_thread((self.folder / MODEL_SOCKET).chmod, 0o666)
            self._http = await stack.enter_async_context(
                httpx.AsyncClient(timeout=SECONDS, follow_redirects=False)
            )
            await stack.enter_async_context(serving(self._answer, listening, _CONNECTIONS))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self._last_answers(LAST_SECONDS if kind is None else HASTE_SECONDS)
        finally:
            await self._stack.aclose()

    def _open(self) -> None:
        self.folder.mkdir()
        self.folder.chmod(0o755)

    async def _last_answers(self, seconds: float) -> None:
        """Wait for running requests and count them; those that take too long count as unknown."""
        self._ended = True
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=seconds)
            self._unknown += len(left)
            for task in left:
                task.cancel()

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one HTTP request, as an ASGI application."""
        async with self._turn:  # before the body is read, so that waiting ones take no memory
            body = bytearray()
            while True:
                part = await receive()
                body += part.get("body", b"")
                if len(body) > QUESTION_BYTES:
                    return await _sent(send, _problem(413, "the request is too long"))
                if part["type"] == "http.disconnect":
                    return None
                if not part.get("more_body"):
                    break
            # A task of its own, which continues if the agent closes the connection: the answer has
            # to be counted.
            task = asyncio.create_task(self._ask(scope, bytes(body)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            return await _sent(send, await task)

    async def _ask(self, scope: MutableMapping[str, Any], body: bytes) -> _Answer:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        path, query = (scope[name].decode("latin-1") for name in ("raw_path", "query_string"))
        given = ModelRequest(scope["method"], path, headers, body)
        rules = query, self._names, self._access.allow
        try:
            request = await asyncio.to_thread(rebuilt, given, *rules)
        except UserError as error:
            return _problem(403, error.message)
        # Method, path and body identify a request; headers differ between two starts of an agent.
        what = f"{request.method} {request.path}\n".encode() + request.body
        question = hashlib.sha256(what).hexdigest()
        number = self._asked[question]
        self._asked[question] += 1
        known = await asyncio.to_thread(self._tape.answer, question, number)
        if known is not None:
            return self._count(known)
        if (why := self._used_up()) is not None:
            self.refusal = why
            self.exhausted.set()
            return _problem(402, why)
        begun = time.monotonic()
        try:
            status, headers, answer = await self._forward(request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _problem(502, without_key(f"no answer: {error!r}", self._key))
        seconds = time.monotonic() - begun
        if status < 400:
            return await self._answered(question, status, headers, answer, seconds)
        # Errors are not charged, and not kept: a repeated request should get a real answer.
        self.seconds += seconds
        if quotes_key(answer, self._key):
            answer = without_key(answer.decode(errors="replace"), self._key).encode()
        return status, headers, answer

    async def _answered(
        self, question: str, status: int, headers: dict[str, str], answer: bytes, seconds: float
    ) -> _Answer:
        """Count an answer and keep it on the tape, unless it contains the key."""
        done = Answered(
            question=question,
            status=status,
            headers=headers,
            body=base64.b64encode(answer).decode(),
            used=used(answer),
            seconds=seconds,
        )
        if quotes_key(answer, self._key):
            self._count(done)  # it is paid for, although nobody gets it
            return _problem(502, QUOTED)
        await asyncio.to_thread(self._tape.append, done)
        return self._count(done)

    async def _forward(self, request: ModelRequest) -> _Answer:
        headers = dict(request.headers)
        if self._key is not None:
            bearer = self._access.key_header == "authorization"
            headers[self._access.key_header] = f"Bearer {self._key}" if bearer else self._key
        endpoint = httpx.URL(self._access.endpoint.rstrip("/"))
        # The host is fixed whatever the path is: the key must not go to another host.
        url = endpoint.copy_with(
            raw_path=(endpoint.path.rstrip("/") + request.path).encode("latin-1")
        )
        async with self._http.stream(
            request.method, url, headers=headers, content=request.body
        ) as answered:
            data = bytearray()
            async for part in answered.aiter_bytes():
                data += part
                if len(data) > MOST:
                    raise httpx.DecodingError("too long an answer")
            kept = {name: value for name, value in answered.headers.items() if name in _KEPT}
            # No answer has any use for the key in its headers.
            kept = {name: without_key(value, self._key) for name, value in kept.items()}
            return answered.status_code, kept, bytes(data)

    def _count(self, answered: Answered) -> _Answer:
        """Count an answer and return it."""
        body = base64.b64decode(answered.body)
        self.seconds += answered.seconds
        if answered.used is not None:
            self._tokens += answered.used.input + answered.used.output
            if self._access.prices is not None:
                self._dollars += answered.used.dollars(self._access.prices)
        else:  # a list of models, for example, costs nothing and contains no usage
            self._unknown += is_reply(body)
        return answered.status, answered.headers, body

    def _used_up(self) -> str | None:
        if self._ended:
            return "the attempt has ended"
        if self._tape.full:
            return "the tape of the attempt is full"
        if self._limit is None:
            return None
        dollars = self.dollars
        if dollars is None:
            return "the model's cost is unknown, and the attempt has a limit in dollars"
        if dollars >= self._limit:
            return f"the attempt's limit of ${self._limit:g} is reached"
        return None


def _problem(status: int, why: str) -> _Answer:
    return status, _JSON, json.dumps({"error": {"message": why, "type": "kgym"}}).encode()


async def _sent(send: Any, answer: _Answer) -> None:
    status, headers, body = answer
    head = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
