"""What a connection may take before its caller is known: memory, time, file descriptors.

uvicorn bounds none of it where httptools parses. A connection that has no request under way
waits; where there are too many, the one that waits longest gives way to the newest.
"""

import asyncio
import ipaddress
import json
import resource
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, ClassVar, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kgym.web.problems import MEDIA_TYPE

DESCRIPTORS = 16_384
"""What the process asks for; each connection may need a second one, for an artifact's file."""
RESERVED = 256
"""Descriptors for the database, the bus, logs."""
SLICE = 16 << 10
"""Bytes that are parsed at once."""
SEND_NOW = "kgym.send_now"
"""The extension of a request's ASGI scope whose `call` is `Guarded.send_now` of its connection."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What connections may take, of one caller and of all: numbers, seconds, bytes."""

    connections: int = 1000
    """Open at the same time; half of them from one address (of IPv6, one /64 network)."""
    head_bytes: int = 32 << 10
    """Of a request's line and header fields; also of what comes before a line, or after a body."""
    head_fields: int = 100
    head_seconds: float = 10
    """From the first byte (of the first request: from the connection) to the end of the head."""
    body_seconds: float = 60
    """From there to the end of the body."""
    stall_seconds: float = 120
    """How long an answer waits for a client that does not read."""

    @classmethod
    def of_process(cls) -> "ConnectionLimits":
        """Return what the process has descriptors for, after it has asked for enough of them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return cls(connections=max(16, (wanted - RESERVED) // 2))


@dataclass(slots=True)
class Crowd:
    """The open connections: of each address how many, and which of them wait, longest first."""

    bounds: ConnectionLimits
    _count: int = 0
    _open: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, dict["Guarded", None]] = field(default_factory=dict)

    def enter(self, one: "Guarded") -> bool:
        """Count a new connection; False if all that could give way are busy."""
        self._count += 1
        self._open[one.address] += 1
        self.wait(one)
        if self._open[one.address] > self.bounds.connections // 2:
            return self._part(one.address, one)
        if self._count > self.bounds.connections:
            crowded = max(self._waiting, key=lambda address: len(self._waiting[address]))
            return self._part(crowded, one)
        return True

    def wait(self, one: "Guarded") -> None:
        """Note that a connection has no request under way."""
        self._waiting.setdefault(one.address, {})[one] = None

    def work(self, one: "Guarded") -> None:
        """Note that a connection has a request under way."""
        waiting = self._waiting.get(one.address, {})
        waiting.pop(one, None)
        if not waiting:
            self._waiting.pop(one.address, None)

    def leave(self, one: "Guarded") -> None:
        """Forget a connection."""
        self.work(one)
        self._count -= 1
        self._open[one.address] -= 1
        if not self._open[one.address]:
            del self._open[one.address]

    def _part(self, address: str, new: "Guarded") -> bool:
        longest = next(iter(self._waiting[address]))
        self.work(longest)
        if longest is not new:
            longest.transport.close()
        return longest is not new


class JoinedWrites:
    """A transport that sends an answer's head and body with one call of the system.

    uvicorn writes them one after the other, and uvloop sends each at once: so the client, too,
    would wake twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it; the head of an answer a moment later, if nothing follows."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._transport.write(data)


class Guarded(HttpToolsProtocol):
    """A connection within the bounds."""

    crowd: ClassVar[Crowd]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self._bounds = self.crowd.bounds
        self._unparsed = 0
        """Bytes since the parser last made something of them."""
        self._in_body = False
        self._too_large = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let the connection in, if there is room."""
        joined = cast(asyncio.Transport, JoinedWrites(transport, self.loop))
        super().connection_made(joined)
        self.address = _network(self.client[0] if self.client else "")
        self._expect(self._bounds.head_seconds)
        if not self.crowd.enter(self):
            self._end(503, "too_many_connections", "too many connections are open; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self.crowd.leave(self)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()

    # --- from the client ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse it, as long as something comes of it."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self._bounds.head_seconds)
        for start in range(0, len(data), SLICE):
            if self.transport.is_closing():
                return
            part = data[start : start + SLICE]
            self._unparsed += len(part)
            super().data_received(part)
            if self._too_large or self._unparsed > self._bounds.head_bytes:
                fields = self._bounds.head_fields
                limit = f"{self._bounds.head_bytes >> 10} KiB, {fields} header fields"
                self._end(431, "head_too_large", f"the head of the request is over {limit}")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_body = False
        self._expect(self._bounds.head_seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; those behind a body are nothing that a route asks for."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request."""
        self._unparsed, self._in_body = 0, True
        self._too_large |= len(self.headers) > self._bounds.head_fields
        if not self._too_large:
            self.crowd.work(self)
            self._expect(self._bounds.body_seconds)
            super().on_headers_complete()
            self.scope["extensions"] = {SEND_NOW: {"call": self.send_now}}

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        if not self._too_large:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is whole."""
        self._unparsed, self._deadline = 0, None
        if self.cycle is not None and self.cycle.response_complete:  # before the body had come
            self._expect(self.timeout_keep_alive)
        if not self._too_large:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.crowd.wait(self)

    # --- to the client --------------------------------------------------------------------

    def send_now(self, data: bytes) -> bool:
        """Send more of an answer without a length that has begun and not ended.

        False, and nothing is sent, while the client does not read what was sent, or is gone.
        """
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def pause_writing(self) -> None:
        """Give the client some time to read on."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._bounds.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again: stop its deadline."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request."""
        self._end(400, "bad_request", msg)

    def _end(self, status: int, reason: str, detail: str) -> None:
        """Close the connection, with a problem document unless an answer is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        phrase = HTTPStatus(status).phrase
        document = {
            "type": f"urn:kgymsuite:problem:{reason}",
            "title": phrase,
            "status": status,
            "detail": detail,
            "instance": "",
            "reason": reason,
        }
        body = json.dumps(document).encode()
        head = (
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    # --- time -----------------------------------------------------------------------------

    def _expect(self, seconds: float) -> None:
        """Let the connection end unless the next thing comes in time."""
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        # One timer, set again when it fires, not at each request: most deadlines are met.
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look)
        else:
            self._end(408, "request_too_slow", "the request did not come in time")


def guarded(bounds: ConnectionLimits) -> type[Guarded]:
    """Return the protocol of a server whose connections keep within these bounds."""

    class Connection(Guarded):
        crowd = Crowd(bounds)

    return Connection


@lru_cache(1000)
def _network(host: str) -> str:
    """Return what stands for one client: an address, or the network that it chooses it from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped:
        return host
    return str(ipaddress.IPv6Network((address, 64), strict=False))
