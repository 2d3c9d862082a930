"""The front door under fuzzing: mutated bodies, odd URLs and headers, broken bytes; seeded.

    KGYM_TEST_SEED=7 KGYM_FUZZ_REQUESTS=20000 ./run test tests/security/test_front_door.py

No answer may blame the server (5xx), all that was accepted can be read and handed to a worker,
and whoever comes afterwards is served.
"""

import asyncio
import contextlib
import copy
import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kgym.api.steps import CheckSpec, Edit, GitSource, KernelConfig, MinimizeSpec, Patch, StepKind
from kgym.api.steps.base import StepRef
from kgym.client import AsyncClient
from kgym.web.server import serve
from kgym_cli.platforms.servers import PostgreSQL
from kgym_scheduler.api.app import create_app
from kgym_scheduler.api.caller_limits import CallerLimits
from kgym_scheduler.database.connection import upgrade
from tests.conftest import SEED
from tests.scheduler.parts import BUILD, WELL, Clock, Platform, badly, claim_of, job, reproduce

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUESTS = int(os.environ.get("KGYM_FUZZ_REQUESTS", "900"))
AT_ONCE = 16

PATCH = Patch(edits=[Edit(file="mm/slab.c", original="a", replacement="b")])
CHECK = CheckSpec(
    source=GitSource(url="https://example.org/linux.git", commit="v6.1"),
    config=KernelConfig(base="tinyconfig", fragments=["CONFIG_X=y\n"]),
    patches=[PATCH, Patch(diff="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")],
)
MINIMIZE = MinimizeSpec(reproduce=StepRef(step=1), build=StepRef(step=0), files=["mm/slab.c"])
JOB = json.loads(job(BUILD, reproduce(0), MINIMIZE, CHECK, tags=("mine",)).model_dump_json())
LEASE, OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))
CALLS: list[Any] = [
    {"call": "claim", "claim": claim_of().model_dump(mode="json")},
    {"call": "report", "lease": LEASE, "log": "made\n", "progress": {"stage": "make", "done": 1}},
    {"call": "finish", "lease": LEASE, "ending": WELL.model_dump(mode="json")},
    {"call": "finish", "lease": OTHER, "ending": badly("user").model_dump(mode="json")},
    {"call": "release", "lease": LEASE},
    {"call": "hold", "lease": LEASE, "name": "suitecache/x"},
    {"call": "ended", "lease": LEASE},
    {"call": "leave", "worker": "worker"},
]

NUMBERS = [0, -1, 1, 100, 1 << 15, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, 10**400]
NUMBERS += [0.5, -0.0, 1e-320, 1.7e308]
TEXTS = ["", "\0", "a\0b", "x" * 70_000, "é" * 300, "\u202e", "../../etc/passwd", "a\nb", "'; --"]
TEXTS += ["/dev/zero", "1" * 5000, "%00", "%s%n", "\x1b[2J", "NaN", "1e400", "\ud7ff\U0001f600"]
ODD: list[Any] = [*NUMBERS, *TEXTS, None, True, [], {}, [[]], [None], {"": {}}, ["a"] * 2000]
RAW = [b"1e400", b"NaN", b"-Infinity", b'"\\ud800"', b'"\xff"', b"[" * 5000, b"9" * 5000, b""]
_JOBS = ["", "/{}", *(f"/{{}}/{name}" for name in ["abort", "restart", "tags", "log", "events"])]
_JOBS += ["/{}/steps/{}/artifacts", "/{}/steps/{}/artifacts/{}"]
PATHS = [f"/v1/jobs{path}" for path in _JOBS]
PATHS += ["/v1/workers", "/v1/workers/{}/drain", "/v1/queues", "/v1/healthz", "/v1/readyz"]
PATHS += ["/v1/worker/calls", "/v1/worker/stay", "/metrics", "/openapi.json", "/docs"]
PATHS += ["/swagger/{}", "/{}", "/v1/{}"]
NAMES = "state kind tag created_after created_before cursor limit from_step step attempt worker x"
HEADERS = ["Range", "If-Range", "Last-Event-ID", "Idempotency-Key", "Content-Type", "Accept"]
HEADERS += ["Content-Length", "Transfer-Encoding", "Expect", "Origin", "Authorization", "Upgrade"]
HEADERS += ["Connection", "Host", "X-Forwarded-For", "X-Forwarded-Proto"]
VALUES = ["bytes=0-", "bytes=-0", "bytes=9-1", "bytes=0-0,2-3", "chunked", "gzip", "websocket"]
VALUES += ["application/json", "text/plain", "100-continue", "upgrade", "close", "Bearer kgym_1_x"]
VALUES += ["2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "99999999999999999-999999999999"]


class Fuzzer:
    """Makes requests."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def request(self) -> bytes:
        """A request of any kind."""
        make = self.dice.choice([self.job, self.job, self.calls, self.any_route, self.any_route])
        request = make()
        return self.broken(request) if self.dice.random() < 0.2 else request

    def job(self) -> bytes:
        return _request("POST", "/v1/jobs", self.mutated(JOB))

    def calls(self) -> bytes:
        calls = self.dice.sample(CALLS, self.dice.randint(1, 4))
        return _request("POST", "/v1/worker/calls", self.mutated({"calls": calls}))

    def any_route(self) -> bytes:
        """A route with odd parameters, query and header fields."""
        dice = self.dice
        path = dice.choice(PATHS)
        while "{}" in path:
            path = path.replace("{}", self._part(), 1)
        if dice.random() < 0.5:
            names = dice.choices(NAMES.split(), k=dice.choice([1, 1, 2, 60]))
            path += "?" + "&".join(f"{name}={self._part()}" for name in names)
        method = dice.choice(["GET", "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "CONNECT"])
        fields = {
            dice.choice(HEADERS): self._value() for _ in range(dice.choice([0, 1, 1, 2, 3, 120]))
        }
        body = self.mutated(dice.choice([["mine"], JOB, {}])) if method in {"POST", "PUT"} else b""
        return _request(method, path, body, fields)

    def mutated(self, value: Any) -> bytes:
        """JSON in which some places are odd."""
        value = json.loads(json.dumps(value))
        for _ in range(self.dice.choice([0, 1, 1, 1, 2, 3])):
            self._mutate(value)
        text = json.dumps(value).encode()
        if self.dice.random() < 0.15:
            text = text.replace(b'"mine"', self.dice.choice(RAW)).replace(
                b'"tinyconfig"', self.dice.choice(RAW), 1
            )
        return text

    def broken(self, request: bytes) -> bytes:
        """The request with some bytes changed, lost, doubled or added."""
        for _ in range(self.dice.randint(1, 4)):
            at = self.dice.randrange(len(request) + 1)
            to = min(len(request), at + self.dice.choice([1, 1, 8, 200]))
            middle = self.dice.choice(
                [b"", request[at:to] * 2, self.dice.randbytes(3), b"\r\n", b"\n\r\n", b"\0", b": "]
            )
            request = request[:at] + middle + request[to:]
        return request

    def _mutate(self, root: Any) -> None:
        places = list(_places(root))
        if not places:
            return
        holder, key = self.dice.choice(places)
        match self.dice.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[self.dice.choice(TEXTS)] = self._odd()
            case 2:
                other, place = self.dice.choice(places)
                holder[key] = json.loads(json.dumps(other[place]))
            case 3 if isinstance(holder, list):
                holder.extend([holder[key]] * 300)
            case _:
                holder[key] = self._odd()

    def _odd(self) -> Any:
        """An odd value, a copy: a later change of it must not reach those that come after."""
        return copy.deepcopy(self.dice.choice(ODD))

    def _part(self) -> str:
        """Something that stands in a URL."""
        some = ["1", "1", "1", "0", *map(str, NUMBERS), *TEXTS, *VALUES]
        chosen = self.dice.choice(some)[:5000]
        return quote(chosen, safe=self.dice.choice(["", "/:+", "/.%"]))

    def _value(self) -> str:
        chosen = self.dice.choice([*VALUES, *VALUES, *map(str, NUMBERS), *TEXTS])
        return chosen.encode().decode("latin-1")[:5000]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value, as what holds it and the key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _request(method: str, path: str, body: bytes, fields: dict[str, str] | None = None) -> bytes:
    known = {"Host": "localhost"}
    if body:
        known |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in (known | (fields or {})).items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


@pytest.fixture(params=["sqlite", "postgresql"])
async def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Platform:
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path}/kgym.db"
    else:
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        url = postgresql.create(f"fuzzed{uuid.uuid4().hex}")
    await upgrade(url)
    return Platform(url, tmp_path, Clock())


async def answer(port: int, request: bytes) -> tuple[int, bytes]:
    """Send the bytes; return the status of the answer, 0 if none came, and what came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    answered = b""
    try:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(1):  # a request that is not whole gets no answer yet
                writer.write(request)
                answered = await reader.readuntil(b"\r\n\r\n")
                if answered.startswith(b"HTTP/1.1 5"):
                    answered += await reader.read(3000)
    finally:
        writer.transport.abort()
    return (int(answered.split(b" ", 2)[1]) if answered else 0), answered


async def test_no_request_is_the_servers_fault(platform: Platform) -> None:
    fuzzer = Fuzzer(SEED)
    requests = iter([fuzzer.request() for _ in range(REQUESTS)])
    statuses = Counter[int]()
    limits = CallerLimits(requests_per_second=1e6, burst=10**6)
    async with (
        platform.scheduler() as scheduler,
        serve(create_app(scheduler, limits)) as address,
        AsyncClient(address.url) as client,
    ):
        await client.submit(job())

        async def ask() -> None:
            for request in requests:
                status, answered = await answer(address.port, request)
                assert status < 500, f"{request[:3000]!r}\n{answered!r}"
                statuses[status] += 1

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        accepted = [view async for view in client.jobs()]
        for view in accepted:
            assert (await client.job(view.id)).id == view.id
        claim = claim_of("honest", 1000, list(StepKind))
        assert (await scheduler.claim(claim)).assignments
        await client.workers()
        await client.queues()
    print(f"seed {SEED}: {dict(sorted(statuses.items()))}, {len(accepted)} jobs")
    assert statuses[201] > REQUESTS // 50
    assert statuses[422] > REQUESTS // 10
