"""Limits of a connection before its caller is known: memory, time, file descriptors.

uvicorn enforces none of them with httptools: its own limits are for h11, and its
`limit_concurrency` rejects everybody once one client holds all connections. Here a connection
without a request is idle; if there are too many connections, the longest idle one is closed.
`deploy/` sets the same limits in nginx, but many installations have no nginx in front.
"""

import asyncio
import json
import resource
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kgym.web.problems import MEDIA_TYPE
from kgym.web.request_limits import network_of

# The soft limit that the process sets; each connection may need a second descriptor, for an
# artifact's file.
DESCRIPTORS = 16_384
# Descriptors for the database, the bus, logs.
RESERVED = 256
# Bytes parsed at a time, so that the limit of a head is checked before much more is parsed.
SLICE = 16 << 10


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections, per connection and in total: numbers, seconds, bytes."""

    connections: int = 1000
    """Open connections; at most half of them from one address (IPv6: one /64 network)."""
    head_bytes: int = 32 << 10
    """Request line and header fields; also bytes before a request line, or after a body."""
    head_fields: int = 100
    head_seconds: float = 10
    """From the first byte (of the first request: from the connection) to the end of the head."""
    body_seconds: float = 60
    """From the end of the head to the end of the body."""
    stall_seconds: float = 120
    """Time after which a client that stopped reading its answer is disconnected."""

    @classmethod
    def of_process(cls) -> "ConnectionLimits":
        """Raise the process's limit of descriptors; return the limits that it allows."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return cls(connections=max(16, (wanted - RESERVED) // 2))


@dataclass(slots=True)
class Crowd:
    """The open connections: their number per address, and the idle ones, longest idle first."""

    bounds: ConnectionLimits
    _count: int = 0
    _open: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, dict["Guarded", None]] = field(default_factory=dict)

    def enter(self, connection: "Guarded") -> bool:
        """Count a new connection; return False if no idle connection can be closed for it."""
        self._count += 1
        self._open[connection.address] += 1
        self.wait(connection)
        if self._open[connection.address] > self.bounds.connections // 2:
            return self._part(connection.address, connection)
        if self._count > self.bounds.connections:
            crowded = max(self._waiting, key=lambda address: len(self._waiting[address]))
            return self._part(crowded, connection)
        return True

    def wait(self, connection: "Guarded") -> None:
        """Note that a connection is idle: it has no request under way."""
        self._waiting.setdefault(connection.address, {})[connection] = None

    def work(self, connection: "Guarded") -> None:
        """Note that a connection has a request under way."""
        waiting = self._waiting.get(connection.address, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(connection.address, None)

    def leave(self, connection: "Guarded") -> None:
        """Remove a closed connection."""
        self.work(connection)
        self._count -= 1
        self._open[connection.address] -= 1
        if not self._open[connection.address]:
            del self._open[connection.address]

    def _part(self, address: str, new: "Guarded") -> bool:
        longest = next(iter(self._waiting[address]))
        self.work(longest)
        if longest is not new:
            longest.transport.close()
        return longest is not new


class Guarded(HttpToolsProtocol):
    """A connection that enforces the limits."""

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
        # Bytes since the parser last reported a head or a part of a body.
        self._unparsed = 0
        self._in_body = False
        self._too_large = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection if there is room."""
        super().connection_made(transport)
        self.address = network_of(self.client[0] if self.client else "")
        self._expect(self._bounds.head_seconds)
        if not self.crowd.enter(self):
            self._end(503, "too_many_connections", "too many connections are open; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove it from the crowd, and cancel its timers."""
        super().connection_lost(exc)
        self.crowd.leave(self)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()

    # --- from the client ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; end the connection if its head is too large."""
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
        """Start the deadline of a request's head."""
        super().on_message_begin()
        self._in_body = False
        self._expect(self._bounds.head_seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field; ignore trailers, which follow a body."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application, and the deadline of the body."""
        self._unparsed, self._in_body = 0, True
        self._too_large |= len(self.headers) > self._bounds.head_fields
        if not self._too_large:
            self.crowd.work(self)
            self._expect(self._bounds.body_seconds)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unparsed = 0
        if not self._too_large:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the deadline: the request is complete."""
        self._unparsed, self._deadline = 0, None
        # The application may have answered before the whole body arrived.
        if self.cycle is not None and self.cycle.response_complete:
            self._expect(self.timeout_keep_alive)
        if not self._too_large:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Become idle until the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.crowd.wait(self)

    # --- to the client --------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the deadline of a client that stopped reading."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._bounds.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that deadline: the client reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not an HTTP request."""
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
        """Set the deadline of the next part of the request; then the connection is closed."""
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        # One timer that is renewed when it fires, not at each request: most deadlines are met.
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look)
        else:
            self._end(408, "request_too_slow", "the request did not come in time")


def guarded(bounds: ConnectionLimits) -> type[Guarded]:
    """Return the protocol class of a server with these limits."""

    class Connection(Guarded):
        crowd = Crowd(bounds)

    return Connection
