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
import os
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.campaign import ModelAccess
from kgym.web.connection_limits import ConnectionLimits, guarded
from kgym_benchmark.campaign.token_use import Used, is_reply, used
from kgym_benchmark.kenv.environment import MODEL_SOCKET

# Questions that are read, or wait for their answers, at a time.
AT_ONCE = 4
# Bytes of an answer.
MOST = 64 << 20
SECONDS = 1800.0
# How long what was asked when the agent ended may take: it is paid for all the same.
LAST_SECONDS = 300.0
# The same where the campaign was interrupted: what comes in time is not asked again.
HASTE_SECONDS = 5.0
_CONNECTIONS = ConnectionLimits(connections=128, body_seconds=SECONDS, stall_seconds=SECONDS)
_KEPT = {"content-type", "retry-after"}
_DROPPED = {
    *("host", "connection", "content-length", "authorization", "x-api-key", "x-goog-api-key"),
    *("accept-encoding", "transfer-encoding", "cookie", "proxy-authorization"),
}
# Of a tape, at most.
TAPE_BYTES = 1 << 30
# Of a question, at most.
QUESTION_BYTES = 16 << 20
# Commas and brackets of a question: a bound for the values that parsing makes of it.
_VALUES = 1_000_000
_PATH = re.compile(r"(?:/[\w.:@-]*)+", re.ASCII)
_LIST = re.compile(r".*/models(?:/[^/]+)?")
_ASKS = re.compile(
    r".*(?:/(?:chat|generate|completions|responses|messages|count_tokens)"
    r"|:(?:generateContent|streamGenerateContent|countTokens|rawPredict|streamRawPredict))"
)
_IN_PATH = re.compile(r"/(?:models|deployments|engines)/([^/:]+)")
_ENDS = re.compile(r"[/:]")
_Answer = tuple[int, dict[str, str], bytes]
_JSON = {"content-type": "application/json"}


class Answered(Strict):
    """A question with its answer: a line of a tape."""

    question: str = Field(description="SHA-256 of its path and body")
    status: int
    headers: dict[str, str]
    body: str = Field(description="Base64")
    used: Used | None = Field(description="null: the answer does not say")
    seconds: float


class ModelTape:
    """Answers of an attempt's model in a file; those of an earlier start are replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, list[int]] = {}
        self._size = 0

    def open(self) -> None:
        """Index the answers; cut off half a line, which a killed process has left."""
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
        """Whether the tape has its largest size."""
        return self._size >= TAPE_BYTES

    def answer(self, question: str, number: int) -> Answered | None:
        """Return the answer to a question when it was asked for the `number`-th time, from 0."""
        places = self._places.get(question, [])
        if number >= len(places):
            return None
        with self._path.open("rb") as file:
            file.seek(places[number])
            return Answered.model_validate_json(file.readline())

    def append(self, answered: Answered) -> None:
        """Write an answer; it is on the disk when this returns."""
        line = answered.model_dump_json().encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)


class ModelProxy:
    """Answers for a model on a socket in `folder` while the context lasts; counts all it takes."""

    def __init__(
        self, model: str, access: ModelAccess, key: str | None, tape: Path, limit: float | None
    ) -> None:
        # Set when a question was refused because the money is used up.
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
                if len(body) > QUESTION_BYTES:
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
        refused = await asyncio.to_thread(refusal, method, path, body, self._names)
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

    def _count(self, answered: Answered) -> _Answer:
        """Count an answer, and return it."""
        body = base64.b64decode(answered.body)
        self.seconds += answered.seconds
        if answered.used is not None:
            self._tokens += answered.used.input + answered.used.output
            if self._access.prices is not None:
                self._dollars += answered.used.dollars(self._access.prices)
        else:  # a list of models, say, costs nothing and says nothing of tokens
            self._unknown += is_reply(body)
        return answered.status, answered.headers, body

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


# --- which requests are questions to the agent's own model ---------------------------


def model_names(model: str) -> frozenset[str]:
    """Return the names by which an agent may call a model: for `a/b/c` also `b/c` and `c`."""
    return frozenset({model, *(model[end.end() :] for end in _ENDS.finditer(model))} - {""})


def refusal(method: str, path: str, body: bytes, known: frozenset[str]) -> str | None:
    """Return why a request is not forwarded; None if it is a question to a model of these names."""
    # An attempt is counted by the prices of one model. So nothing else goes to the endpoint: no
    # other model, and nothing that costs or shows the account's owner something, such as images,
    # files or what others have asked.
    if not _PATH.fullmatch(path) or ".." in path:
        return f"{path[:200]!r} is no path of a model"
    if method == "GET" and _LIST.fullmatch(path):
        return None
    if method != "POST" or not _ASKS.fullmatch(path):
        return f"{method} {path[:200]} is no question to a model"
    try:
        models = {*_IN_PATH.findall(path)} | _models_in(body)
    except (ValueError, RecursionError) as error:
        return f"the question cannot be read: {error}"
    return _foreign_model(models, known)


def _foreign_model(models: set[str], known: frozenset[str]) -> str | None:
    if not models:
        return "the question names no model"
    if others := sorted(models - known):
        return (
            f"this attempt is of {' or '.join(sorted(known))}, and not of {others[0][:200]}; a"
            " campaign lists further `names` of a model"
        )
    return None


def _models_in(body: bytes) -> set[str]:
    if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES:
        raise ValueError("it has too many values")
    question = json.loads(body, object_pairs_hook=_without_repeats)
    if not isinstance(question, dict):
        raise ValueError("it is no object")
    name = question.get("model")
    return {name} if isinstance(name, str) else set()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A repeated field could mean one model here and another at the endpoint.
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields
