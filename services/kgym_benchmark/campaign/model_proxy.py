"""An agent's one way out: its model's endpoint, by way of a process that counts.

The agent asks http://127.0.0.1:8400, and gets what the endpoint answers. The key is added here, so
the agent has none, and only questions to its model are passed on. Tokens are read from the answers,
and their price from the campaign; at the limit, nothing is asked any more. A few questions at most
are under way at a time, so that no agent asks a thousand before the first is counted. Each answer
is on the disk before the agent has it: an attempt that was killed begins again, and what it asks
again is answered from there.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn

from kgym.bench.campaign import ModelAccess
from kgym.web.connection_limits import ConnectionLimits, guarded
from kgym_benchmark.campaign import model_question
from kgym_benchmark.campaign.model_tape import Answered, ModelTape
from kgym_benchmark.campaign.token_use import is_reply, used
from kgym_benchmark.kenv.environment import MODEL_SOCKET

AT_ONCE = 4
"""Questions that are read, or wait for their answers, at a time."""
MOST = 64 << 20
"""Bytes of an answer."""
SECONDS = 1800.0
LAST_SECONDS = 300.0
"""How long what was asked when the agent ended may take: it is paid for all the same."""
HASTE_SECONDS = 5.0
"""The same where the campaign was interrupted: what comes in time is not asked again."""
_CONNECTIONS = ConnectionLimits(connections=128, body_seconds=SECONDS, stall_seconds=SECONDS)
_KEPT = {"content-type", "retry-after"}
_DROPPED = {
    *("host", "connection", "content-length", "authorization", "x-api-key", "x-goog-api-key"),
    *("accept-encoding", "transfer-encoding", "cookie", "proxy-authorization"),
}
_Answer = tuple[int, dict[str, str], bytes]
_JSON = {"content-type": "application/json"}


class ModelProxy:
    """Answers for a model on a socket in `folder` while the context lasts; counts all it takes."""

    def __init__(
        self, model: str, access: ModelAccess, key: str | None, tape: Path, limit: float | None
    ) -> None:
        self.exhausted = asyncio.Event()
        """Set when a question was refused because the money is used up."""
        self.refusal: str | None = None
        self.seconds = 0.0
        self._names = model_question.names(model).union(access.names)
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
        """All tokens, in and out; None where an answer does not say."""
        return None if self._unknown else self._tokens

    @property
    def dollars(self) -> float | None:
        """What they take; None where that is not known."""
        return None if self._unknown or self._access.prices is None else self._dollars

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            outer = stack.enter_context(tempfile.TemporaryDirectory(prefix="kgym-model-"))
            self.folder = Path(outer, "model")
            await asyncio.to_thread(self._open)
            await asyncio.to_thread(self._tape.open)
            listening = socket.socket(socket.AF_UNIX)
            stack.callback(listening.close)
            listening.bind(str(self.folder / MODEL_SOCKET))
            await asyncio.to_thread((self.folder / MODEL_SOCKET).chmod, 0o666)
            self._http = await stack.enter_async_context(
                httpx.AsyncClient(timeout=SECONDS, follow_redirects=False)
            )
            server = _Server(
                uvicorn.Config(
                    self._answer,
                    http=guarded(_CONNECTIONS),
                    interface="asgi3",
                    ws="none",
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                )
            )
            serving = asyncio.create_task(server.serve([listening]))
            stack.push_async_callback(_stopped, server, serving)
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
        """Wait for what is still asked, as it is counted; what takes too long is not known."""
        self._ended = True
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=seconds)
            self._unknown += len(left)
            for task in left:
                task.cancel()

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request of HTTP, as an ASGI application."""
        async with self._turn:  # before the body is read, which stays where it is until then
            body = bytearray()
            while True:
                part = await receive()
                body += part.get("body", b"")
                if len(body) > model_question.QUESTION:
                    return await _sent(send, _problem(413, "too long a question"))
                if part["type"] == "http.disconnect":
                    return None
                if not part.get("more_body"):
                    break
            # A task of its own: it goes on if the agent is gone.
            task = asyncio.create_task(self._ask(scope, bytes(body)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            return await _sent(send, await task)

    async def _ask(self, scope: MutableMapping[str, Any], body: bytes) -> _Answer:
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        whole = f"{path}?{query}" if query else path
        refused = await asyncio.to_thread(model_question.refusal, method, path, body, self._names)
        if refused is not None:
            return _problem(403, refused)
        question = hashlib.sha256(f"{method} {whole}\n".encode() + body).hexdigest()
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
            status, headers, answer = await self._forward(scope, whole, body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _problem(502, f"no answer: {error!r}")
        seconds = time.monotonic() - begun
        if status >= 400:
            self.seconds += seconds
            return status, headers, answer
        done = Answered(
            question=question,
            status=status,
            headers=headers,
            body=base64.b64encode(answer).decode(),
            used=used(answer),
            seconds=seconds,
        )
        await asyncio.to_thread(self._tape.append, done)
        return self._count(done)

    async def _forward(self, scope: MutableMapping[str, Any], path: str, body: bytes) -> _Answer:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name.decode("latin-1").lower() not in _DROPPED
        }
        if self._key is not None:
            bearer = self._access.key_header == "authorization"
            headers[self._access.key_header] = f"Bearer {self._key}" if bearer else self._key
        endpoint = httpx.URL(self._access.endpoint.rstrip("/"))
        # Whatever the path is, the host stays: the key goes to no other one.
        url = endpoint.copy_with(raw_path=(endpoint.path.rstrip("/") + path).encode("latin-1"))
        async with self._http.stream(
            scope["method"], url, headers=headers, content=body
        ) as answered:
            data = bytearray()
            async for part in answered.aiter_bytes():
                data += part
                if len(data) > MOST:
                    raise httpx.DecodingError("too long an answer")
            kept = {name: value for name, value in answered.headers.items() if name in _KEPT}
            return answered.status_code, kept, bytes(data)

    def _count(self, one: Answered) -> _Answer:
        """Count an answer, and return it."""
        body = base64.b64decode(one.body)
        self.seconds += one.seconds
        if one.used is not None:
            self._tokens += one.used.input + one.used.output
            if self._access.prices is not None:
                self._dollars += one.used.dollars(self._access.prices)
        else:  # a list of models, say, costs nothing and says nothing of tokens
            self._unknown += is_reply(body)
        return one.status, one.headers, body

    def _used_up(self) -> str | None:
        if self._ended:
            return "the attempt has ended"
        if self._tape.full:
            return "the model has answered as much as the tape of an attempt holds"
        if self._limit is None:
            return None
        dollars = self.dollars
        if dollars is None:
            return "what the model took is not known, and the attempt has a limit in dollars"
        if dollars >= self._limit:
            return f"the attempt's limit of ${self._limit:g} is reached"
        return None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def _stopped(server: _Server, serving: asyncio.Task[None]) -> None:
    server.should_exit = server.force_exit = True
    await serving


def _problem(status: int, why: str) -> _Answer:
    return status, _JSON, json.dumps({"error": {"message": why, "type": "kgym"}}).encode()


async def _sent(send: Any, answer: _Answer) -> None:
    status, headers, body = answer
    head = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
