"""One HTTP/1.1 connection that is kept, for a caller with many small requests to one server.

httpx takes 2 ms of a core for a request, several times what all else takes that a worker does
for a short step; this takes a tenth of it. It knows nothing of proxies, redirects or cookies:
workers reach their scheduler directly.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools
import httpx


@dataclass(slots=True)
class Reply:
    """The server's answer."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    content: bytes = b""


class HttpConnection:
    """A connection to the server of `url`, made when it is needed, and again when it was lost."""

    def __init__(self, url: httpx.URL, headers: dict[str, str], connect_seconds: float) -> None:
        port = f":{url.port}" if url.port else ""
        host = f"[{url.host}]" if ":" in url.host else url.host
        lines = {"Host": host + port, "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._url = url
        self._seconds = connect_seconds
        self._line: _Line | None = None

    async def post(self, path: str, body: bytes, seconds: float) -> Reply:
        """Send JSON; return the answer, whatever its status.

        Raises OSError where the server cannot be reached, or goes, and TimeoutError after
        `seconds`. The server may have taken the request nevertheless.
        """
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        if self._line is None or self._line.lost:
            self._line = await self._connect()
        try:
            async with asyncio.timeout(seconds):
                return await self._line.ask(head.encode("ascii") + body)
        except BaseException:  # an answer that comes later would be taken for the next one's
            self.close()
            raise

    async def listen(self, path: str, heard: Callable[[bytes], None], seconds: float) -> None:
        """Hand on the answer as it comes, until it ends.

        Raises OSError where the server cannot be reached, or goes, and TimeoutError once nothing
        has come for `seconds`.
        """
        loop = asyncio.get_running_loop()
        line = self._line = await self._connect()
        last = loop.time()

        def hear(said: bytes) -> None:
            nonlocal last
            last = loop.time()
            heard(said)

        line.hear = hear
        head = f"GET {path} HTTP/1.1\r\n{self._head}\r\n"
        answer = asyncio.create_task(line.ask(head.encode("ascii")))
        try:
            while not answer.done():
                if (left := last + seconds - loop.time()) <= 0:
                    raise TimeoutError
                await asyncio.wait({answer}, timeout=left)
            answer.result()
        finally:
            self.close()
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    async def _connect(self) -> "_Line":
        secure = self._url.scheme == "https"
        async with asyncio.timeout(self._seconds):
            _, line = await asyncio.get_running_loop().create_connection(
                _Line,
                self._url.host,
                self._url.port or (443 if secure else 80),
                ssl=ssl.create_default_context() if secure else None,
            )
        return line


class _Line(asyncio.Protocol):
    """What asyncio and the parser call."""

    def __init__(self) -> None:
        self.lost = False
        self.hear: Callable[[bytes], None] | None = None
        """Gets the body, if it is not to be kept."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply = Reply()
        self._answer: asyncio.Future[Reply] | None = None

    async def ask(self, request: bytes) -> Reply:
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None:
            self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._end(ConnectionError(f"the connection was closed{f' ({exc})' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"no HTTP answer: {error}"))
            self.close()

    def on_message_begin(self) -> None:
        self._reply = Reply()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        if self.hear is None:
            self._reply.content += body
        else:
            self.hear(body)

    def on_message_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._reply)

    def _end(self, error: Exception) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            if self._answer is not None:
                self._answer.set_exception(error)
