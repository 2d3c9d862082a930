"""What strangers can do to the server with connections alone; over raw sockets."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from kgym.web.connection_limits import ConnectionLimits
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import job, take

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
DATABASE = "sqlite"
GET = b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n"
FOLLOW = b"GET /v1/jobs/1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Socket:
    """A connection that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """The status of the next answer, without its body."""
        head, self.body = await self.answer()
        return int(head.split()[1])

    async def answer(self) -> tuple[str, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length: ")[2].split("\r\n")[0]
        return head, await self.reader.readexactly(int(length)) if length else b""

    async def refused(self, status: int, reason: str) -> None:
        """Read the problem that the connection ends with."""
        assert await self.status() == status
        document: dict[str, Any] = json.loads(self.body)
        assert (document["status"], document["reason"]) == (status, reason)
        assert await self.closed()

    async def closed(self) -> bool:
        """Wait until the server has closed the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


Connect = Callable[..., AbstractAsyncContextManager[Socket]]


@asynccontextmanager
async def served(scheduler: Scheduler, **bounds: Any) -> AsyncIterator[Connect]:
    """A server with these bounds, as what connects to it."""
    async with serve(create_app(scheduler), bounds=ConnectionLimits(**bounds)) as address:

        @asynccontextmanager
        async def connect(sent: bytes = b"", of: str = "127.0.0.1") -> AsyncIterator[Socket]:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", address.port, local_addr=(of, 0)
            )
            writer.write(sent)
            try:
                yield Socket(reader, writer)
            finally:
                writer.transport.abort()

        yield connect


# --- bytes ----------------------------------------------------------------------------------

ENDLESS = {
    "url": b"GET /" + b"a" * 200_000,
    "field": GET + b"X: " + b"a" * 200_000,
    "fields": GET + b"X: a\r\n" * 40_000,
    "empty lines": b"\r\n" * 100_000,
    "trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: aaaaaaaa\r\n" * 20_000,
    "chunk extension": POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000,
    "many fields": GET + b"".join(b"X%d: a\r\n" % n for n in range(101)) + b"\r\n",
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", ENDLESS)
async def test_a_head_of_any_length_is_not_kept(scheduler: Scheduler, what: str) -> None:
    async with served(scheduler) as connect, connect(ENDLESS[what]) as socket:
        if what in {"trailers", "chunk extension"}:  # behind a request that waits for its body
            assert await socket.closed()
        else:
            await socket.refused(431, "head_too_large")
        async with connect(GET + b"\r\n") as other:
            assert await other.status() == 200


@pytest.mark.parametrize(
    "sent", [b"\x00\xff" * 9, b"GET /v1/jobs?tag=\xff HTTP/1.1\r\n\r\n", GET + b"\x01: a\r\n\r\n"]
)
async def test_what_is_no_request_gets_a_problem(scheduler: Scheduler, sent: bytes) -> None:
    async with served(scheduler) as connect, connect(sent) as socket:
        await socket.refused(400, "bad_request")


@pytest.mark.thorough
async def test_requests_may_come_in_one_piece_or_byte_by_byte(scheduler: Scheduler) -> None:
    async with served(scheduler) as connect, connect((GET + b"\r\n") * 300) as socket:
        for _ in range(300):
            assert await socket.status() == 200
        for byte in GET + b"\r\n":
            socket.say(bytes([byte]))
            await asyncio.sleep(0)
        assert await socket.status() == 200


async def test_a_field_behind_the_body_is_not_one_of_the_request(scheduler: Scheduler) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    async with (
        served(scheduler) as connect,
        connect(chunked + b"Idempotency-Key: \xe4\r\n\r\n") as socket,
    ):
        assert await socket.status() == 422
        [error] = json.loads(socket.body)["errors"]
        assert error["location"] == "body.steps"


# --- time -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"G", GET, GET + b"\r\n" + GET])
async def test_a_head_has_to_come_in_time(scheduler: Scheduler, sent: bytes) -> None:
    async with served(scheduler, head_seconds=1) as connect, connect(sent) as socket:
        if sent.startswith(GET + b"\r\n"):
            assert await socket.status() == 200
        await socket.refused(408, "request_too_slow")


@pytest.mark.thorough
async def test_drops_of_a_head_give_it_no_more_time(scheduler: Scheduler) -> None:
    async with served(scheduler, head_seconds=0.3) as connect, connect(GET) as socket:

        async def drip() -> None:
            while not socket.writer.is_closing():
                socket.say(b"X: a\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await socket.status() == 408
        dripping.cancel()


@pytest.mark.thorough
async def test_a_body_has_to_come_in_time(scheduler: Scheduler) -> None:
    begun = POST + b'Content-Length: 100\r\n\r\n{"steps":'
    async with served(scheduler, body_seconds=0.3) as connect, connect(begun) as socket:
        assert await socket.closed()


@pytest.mark.thorough
async def test_an_answer_is_not_kept_for_who_does_not_read(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    assignment = await take(scheduler)
    for _ in range(40):
        await scheduler.report(assignment.lease, "x" * 500_000, None)
    async with served(scheduler, stall_seconds=1) as connect, connect(FOLLOW) as socket:
        assert await socket.status() == 200
        await asyncio.sleep(3)
        cut = asyncio.IncompleteReadError, ConnectionError
        with pytest.raises(cut):  # else it goes on: the job has not ended
            await socket.reader.readexactly(40 * 500_000)


@pytest.mark.thorough
async def test_an_idle_connection_and_a_stream_outlast_a_heads_time(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    async with (
        served(scheduler, head_seconds=1, body_seconds=1) as connect,
        connect(GET + b"\r\n") as idle,
        connect(FOLLOW) as stream,
    ):
        assert (await idle.status(), await stream.status()) == (200, 200)
        await asyncio.sleep(2.5)
        idle.say(GET + b"\r\n")
        assert await idle.status() == 200
        await scheduler.abort(1)
        assert b"end" in await stream.reader.readuntil(b"event: end")


# --- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", GET])
@pytest.mark.parametrize("network", ["127.0.0.1", "127.0.1.{}"])
async def test_half_open_connections_lock_nobody_out(
    scheduler: Scheduler, sent: bytes, network: str
) -> None:
    async with served(scheduler, connections=20) as connect, AsyncExitStack() as half_open:
        for number in range(60):
            await half_open.enter_async_context(connect(sent, network.format(number)))
        for of in ("127.0.0.1", "127.0.0.2"):
            async with connect(GET + b"\r\n", of) as socket:
                assert await socket.status() == 200


async def test_who_has_a_request_under_way_gives_way_to_nobody(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    async with served(scheduler, connections=8) as connect:
        streams = AsyncExitStack()
        sockets = [await streams.enter_async_context(connect(FOLLOW)) for _ in range(4)]
        assert [await socket.status() for socket in sockets] == [200] * 4
        async with connect(GET + b"\r\n") as fifth:
            await fifth.refused(503, "too_many_connections")
        async with connect(GET + b"\r\n", "127.0.0.2") as another:
            assert await another.status() == 200
        await scheduler.abort(1)
        for socket in sockets:
            assert b"aborted" in await socket.reader.readuntil(b"event: end")
            await socket.reader.readuntil(b"\r\n0\r\n\r\n")  # the answer is whole
        await streams.aclose()
        async with connect(GET + b"\r\n") as fifth:
            assert await fifth.status() == 200


def test_the_process_asks_for_the_descriptors_that_it_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (700, before[1]))
        bounds = ConnectionLimits.of_process()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (soft, hard) == (min(before[1], 16_384), before[1])
        assert bounds.connections * 2 < soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
