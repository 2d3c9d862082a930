"""The connection that a worker keeps to its scheduler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from kgym.worker.http_connection import HttpConnection

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"


class Server:
    """Answers each request, on whatever connection, with the next of these pieces of bytes."""

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self._answers = iter(answers)
        self.connections = self.open = 0
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._answer_all(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            self.asked.append(head + await reader.readexactly(length))
            for piece in next(self._answers):
                if piece == b"":
                    writer.transport.abort()
                    return
                writer.write(piece)
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def wire(server: Server) -> AsyncIterator[HttpConnection]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    one = HttpConnection(httpx.URL(f"http://127.0.0.1:{port}/v1"), {"Authorization": "Bearer x"}, 5)
    try:
        yield one
    finally:
        one.close()
        listening.close()
        async with asyncio.timeout(10):
            while server.open:
                await asyncio.sleep(0.01)


async def test_requests_share_a_connection_however_their_answers_come() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ngo\r\n2\r\nod\r\n0\r\n\r\n"
    )
    bad = b"HTTP/1.1 503 Service Unavailable\r\nX-Why: busy\r\nContent-Length: 3\r\n\r\nbad"
    server = Server([[OK], [bytes([byte]) for byte in OK], [chunked], [bad]])
    async with wire(server) as one:
        replies = [await one.post("/v1/worker/calls", b"{}", 10) for _ in range(4)]
    assert [reply.content for reply in replies] == [b"good", b"good", b"good", b"bad"]
    assert [reply.status for reply in replies] == [200, 200, 200, 503]
    assert (b"X-Why", b"busy") in replies[3].headers
    assert server.connections == 1
    assert server.asked[0].startswith(b"POST /v1/worker/calls HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.asked[0].endswith(b"\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("cut", [[b""], [OK[:20], b""], [OK[:-1], b""], [b"SSH-2.0-x\r\n"]])
async def test_a_connection_that_is_lost_is_an_error_and_made_again(cut: list[bytes]) -> None:
    server = Server([[OK], cut, [OK]])
    async with wire(server) as one:
        await one.post("/", b"", 10)
        with pytest.raises(ConnectionError):
            await one.post("/", b"", 10)
        assert (await one.post("/", b"", 10)).content == b"good"
    assert server.connections == 2


async def test_an_answer_that_comes_too_late_is_nobody_elses() -> None:
    server = Server([[], [OK]])
    async with wire(server) as one:
        with pytest.raises(TimeoutError):
            await one.post("/", b"", 0.05)
        assert (await one.post("/", b"", 10)).content == b"good"
    assert server.connections == 2


async def test_a_connection_that_the_server_closes_meanwhile_is_made_again() -> None:
    close = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    server = Server([[close], [OK, b""], [OK]])
    async with wire(server) as one:
        for _ in range(3):
            assert (await one.post("/", b"", 10)).content == b"good"
            await asyncio.sleep(0.05)  # a moment for the end of the connection to arrive
    assert server.connections == 3


async def test_a_server_that_is_not_there_is_an_error() -> None:
    one = HttpConnection(httpx.URL("http://127.0.0.1:1/v1"), {}, 5)
    with pytest.raises(OSError, match="Connect"):
        await one.post("/", b"", 10)
