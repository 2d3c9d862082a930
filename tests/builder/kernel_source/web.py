"""A web server that says whatever a test wants it to say."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

# From the path that is asked for to the bytes of the whole answer.
Answer = Callable[[str], Iterable[bytes]]
# Bytes after which an endless answer ends: then nobody stopped it.
ENOUGH = 256 << 20


@dataclass
class Web:
    """A server of the test's: where it listens, and what it was asked."""

    url: str
    asked: list[str] = field(default_factory=list)
    sent: int = 0


@asynccontextmanager
async def serving(
    answer: Answer, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Web]:
    """Serve; each connection gets one answer."""
    web = Web("")
    open_now: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            web.asked.append(head)
            for piece in answer(head.split(" ")[1]):
                writer.write(piece)
                web.sent += len(piece)
                await writer.drain()
                if web.sent > ENOUGH:
                    break
        writer.close()
        try:
            await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        open_now.discard(task)

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    web.url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield web
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted connection is closed by the loop's next turn


def ok(body: bytes, *headers: str) -> list[bytes]:
    """Return an answer with this body."""
    head = "".join(f"{header}\r\n" for header in (*headers, f"Content-Length: {len(body)}"))
    return [f"HTTP/1.1 200 OK\r\n{head}\r\n".encode(), body]


def redirect(url: str) -> list[bytes]:
    """Return an answer that sends the client elsewhere."""
    return [f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()]


def files(folder: Path) -> Answer:
    """Return what answers with the files of a folder, as Git's dumb protocol wants them."""

    def answer(path: str) -> list[bytes]:
        file = folder / path.partition("?")[0].lstrip("/")
        if not file.is_file():
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
        return ok(file.read_bytes())

    return answer
