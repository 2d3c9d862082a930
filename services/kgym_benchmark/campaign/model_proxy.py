"""An agent's one way out: its model's endpoint, by way of a process that counts.

The agent asks http://127.0.0.1:8400, and gets what the endpoint answers. The key is added here, so
the agent has none. Tokens are read from the answers, and their price from the campaign; at the
limit, nothing is asked any more. Each answer is on the disk before the agent has it: an attempt
that was killed begins again, and what it asks again is answered from there.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
from pydantic import Field, ValidationError

from kgym.api.steps import Strict
from kgym.bench.campaign import ModelAccess, Prices
from kgym_benchmark.kenv.environment import MODEL_SOCKET

MOST = 64 << 20
"""Bytes of a question or an answer."""
SECONDS = 1800.0
_PATH = 2000
_KEPT = {"content-type", "retry-after"}
_DROPPED = {
    *("host", "connection", "content-length", "authorization", "x-api-key", "x-goog-api-key"),
    *("accept-encoding", "transfer-encoding", "cookie", "proxy-authorization"),
}


class Used(Strict):
    """The tokens of an answer."""

    input: int = Field(0, ge=0)
    cached: int = Field(0, ge=0, description="of the input")
    output: int = Field(0, ge=0)

    def dollars(self, prices: Prices) -> float:
        """Return what they take."""
        cached = prices.input if prices.cached is None else prices.cached
        fresh = max(self.input - self.cached, 0)
        paid = fresh * prices.input + self.cached * cached + self.output * prices.output
        return paid / 1e6


class Answered(Strict):
    """A question that was answered, as the tape holds it."""

    question: str = Field(description="SHA-256 of its path and body")
    status: int
    headers: dict[str, str]
    body: str = Field(description="Base64")
    used: Used | None = Field(description="null: the answer does not say")
    seconds: float


class ModelProxy:
    """Answers for a model on a socket in `folder` while the context lasts; counts all it takes."""

    def __init__(
        self, access: ModelAccess, key: str | None, tape: Path, limit: float | None
    ) -> None:
        self.exhausted = asyncio.Event()
        """Set when a question was refused because the money is used up."""
        self.refusal: str | None = None
        self.seconds = 0.0
        self._access = access
        self._key = key
        self._tape = tape
        self._limit = limit
        self._answered: list[Answered] = []
        self._replays: dict[str, list[Answered]] = {}
        self._asked = Counter[str]()
        self._unknown = 0
        self._stack = contextlib.AsyncExitStack()

    @property
    def tokens(self) -> int | None:
        """All tokens, in and out; None where an answer does not say."""
        if self._unknown:
            return None
        return sum(one.used.input + one.used.output for one in self._answered if one.used)

    @property
    def dollars(self) -> float | None:
        """What they take; None where that is not known."""
        prices = self._access.prices
        if prices is None or self._unknown:
            return None
        return sum(one.used.dollars(prices) for one in self._answered if one.used)

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            outer = stack.enter_context(tempfile.TemporaryDirectory(prefix="kgym-model-"))
            self.folder = Path(outer, "model")
            await asyncio.to_thread(self._open)
            for one in await asyncio.to_thread(_read, self._tape):
                self._replays.setdefault(one.question, []).append(one)
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

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _open(self) -> None:
        self.folder.mkdir()
        self.folder.chmod(0o755)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request of HTTP, as an ASGI application."""
        body = bytearray()
        while True:
            part = await receive()
            body += part.get("body", b"")
            if len(body) > MOST:
                return await _sent(send, 413, {}, b"too long a question")
            if part["type"] == "http.disconnect":
                return None
            if not part.get("more_body"):
                break
        status, headers, answer = await self._ask(scope, bytes(body))
        return await _sent(send, status, headers, answer)

    async def _ask(
        self, scope: MutableMapping[str, Any], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        path = scope["path"] + (
            f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        )
        question = hashlib.sha256(f"{scope['method']} {path}\n".encode() + body).hexdigest()
        number = self._asked[question]
        self._asked[question] += 1
        known = self._replays.get(question, [])
        if number < len(known):
            self._count(known[number])
            return _told(known[number])
        if (why := self._used_up()) is not None:
            self.refusal = why
            self.exhausted.set()
            return 402, {"content-type": "application/json"}, _problem(why)
        if len(path) > _PATH:
            return 414, {}, b""
        begun = time.monotonic()
        try:
            status, headers, answer = await self._forward(scope, path, body)
        except httpx.HTTPError as error:
            return 502, {"content-type": "application/json"}, _problem(f"no answer: {error!r}")
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
        await asyncio.to_thread(_append, self._tape, done)
        self._count(done)
        return _told(done)

    async def _forward(
        self, scope: MutableMapping[str, Any], path: str, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name.decode("latin-1").lower() not in _DROPPED
        }
        if self._key is not None:
            bearer = self._access.key_header == "authorization"
            headers[self._access.key_header] = f"Bearer {self._key}" if bearer else self._key
        url = self._access.endpoint.rstrip("/") + path
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

    def _count(self, one: Answered) -> None:
        self._answered.append(one)
        self.seconds += one.seconds
        # A list of models, say, costs nothing and says nothing of tokens.
        self._unknown += one.used is None and len(one.body) > 0 and _is_reply(one)

    def _used_up(self) -> str | None:
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


def used(answer: bytes) -> Used | None:
    """Return the tokens that an answer says it took, as OpenAI, Anthropic or Gemini say it.

    Of an answer that came in pieces, the last word of each counts. None where it says nothing.
    """
    found: dict[str, int] = {}
    for text in [answer, *_pieces(answer)]:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            continue
        for place in (said, *(_within(said, name) for name in ("message", "response"))):
            for name in ("usage", "usageMetadata"):
                found |= _numbers(_within(place, name))
    if not found:
        return None
    fresh = found.get("prompt_tokens", found.get("promptTokenCount", found.get("input_tokens", 0)))
    read = found.get("cache_read_input_tokens", 0)
    written = found.get("cache_creation_input_tokens", 0)
    try:
        return Used(
            input=fresh + read + written,
            cached=read + found.get("cached_tokens", found.get("cachedContentTokenCount", 0)),
            output=found.get("completion_tokens", found.get("output_tokens", 0))
            + found.get("candidatesTokenCount", 0)
            + found.get("thoughtsTokenCount", 0),
        )
    except ValidationError:
        return None


def _pieces(answer: bytes) -> Iterator[bytes]:
    for line in answer.splitlines():
        if line.startswith(b"data:") and b"sage" in line:
            yield line[5:].strip()


def _within(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _numbers(usage: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in (usage if isinstance(usage, dict) else {}).items():
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
        elif name in {"prompt_tokens_details", "input_tokens_details"}:
            found |= {key: one for key, one in _numbers(value).items() if key == "cached_tokens"}
    return found


def _is_reply(one: Answered) -> bool:
    """Tell whether it is the answer of a model: lists of models name no `choices` or `content`."""
    body = base64.b64decode(one.body)
    return any(word in body for word in (b'"choices"', b'"content"', b'"candidates"', b'"output"'))


def _told(one: Answered) -> tuple[int, dict[str, str], bytes]:
    return one.status, one.headers, base64.b64decode(one.body)


def _problem(why: str) -> bytes:
    return json.dumps({"error": {"message": why, "type": "kgym"}}).encode()


async def _sent(send: Any, status: int, headers: dict[str, str], body: bytes) -> None:
    head = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _append(tape: Path, one: Answered) -> None:
    with tape.open("ab") as file:
        file.write(one.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read(tape: Path) -> list[Answered]:
    """Read the tape; half a line at its end, which a killed process has left, goes."""
    found, whole = [], 0
    if tape.exists():
        with tape.open("rb+") as file:
            for line in file:
                if line.endswith(b"\n"):
                    found.append(Answered.model_validate_json(line))
                    whole += len(line)
            file.truncate(whole)
    return found
