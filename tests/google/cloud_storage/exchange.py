"""A request over HTTP and its answer, with what goes wrong on purpose."""

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import IO, Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from tests.google.cloud_storage.buckets import CHUNK, Refusal, Stored
from tests.google.cloud_storage.state import Requests

MOST_JSON = 1 << 20
Query = dict[str, str]


class Reset(Exception):
    """The connection is to be reset, without an answer."""


class Http(ThreadingHTTPServer):
    """The server's socket, and a thread for each connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    cloud: Requests

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that go away are what is tested."""


class Served(Requests):
    """A server in threads of this process, while the context lasts."""

    def serve(self, port: int, exchange: "type[Exchange]") -> None:
        """Listen; requests are answered from the start of the context on."""
        self._http = Http(("127.0.0.1", port), exchange)
        self._http.cloud = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class Exchange(BaseHTTPRequestHandler):
    """A request and its answer; what is done between them is `route`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    server: Http
    table: "ClassVar[tuple[tuple[str, str, Route], ...]]" = ()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Say nothing."""

    @property
    def cloud(self) -> Requests:
        """What the server knows."""
        return self.server.cloud

    @property
    def request_line(self) -> str:
        """Method and target, which the patterns of faults match."""
        return f"{self.command} {self.path}"

    def _answer(self) -> None:
        self.left = int(self.headers.get("Content-Length") or 0)
        self.answered = False
        with self.cloud.counted(self.request_line, self.headers.get("Authorization")):
            try:
                if self.cloud.delay:
                    self.cloud.stopping.wait(self.cloud.delay)
                self._fail_on_purpose()
                self.route()
            except Refusal as refusal:
                self._refuse(refusal)
            except (Reset, ConnectionError, TimeoutError):
                self._reset()
        if self.left:
            self.close_connection = True  # what was not read would be taken for a request

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _fail_on_purpose(self) -> None:
        fault = self.cloud.faults.take(self.request_line, "status", "reset")
        if fault is None:
            return
        if fault.kind != "status":
            raise Reset
        raise Refusal(fault.number, "backendError", "On purpose.")

    def route(self) -> None:
        """Dispatch the request by `table`."""
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        for method, pattern, route in self.table:
            if method == self.command and (match := re.fullmatch(pattern, parts.path)):
                self.authorize(route)
                route(self, match, query)
                return
        raise Refusal(404, "notFound", f"Not Found: {self.request_line}")

    def authorize(self, route: "Route") -> None:
        """Raise Refusal unless the caller may use this route."""

    # --- bodies ------------------------------------------------------------------------------

    def body(self, most: int) -> bytes:
        """Read the body; raise Reset if it breaks off."""
        if self.left > most:
            raise Refusal(413, "uploadTooLarge", "Request too large.")
        body = self.rfile.read(self.left)
        if len(body) < self.left:
            raise Reset
        self.left = 0
        return body

    def json(self) -> dict[str, Any]:
        """Read a body in JSON."""
        body = self.body(MOST_JSON)
        try:
            read = json.loads(body or b"{}")
        except ValueError as error:
            raise Refusal(400, "parseError", "Parse Error") from error
        if not isinstance(read, dict):
            raise Refusal(400, "parseError", "Parse Error")
        return read

    def receive(self, sink: IO[bytes], skip: int = 0) -> None:
        """Write the body, but for its first bytes; raise Reset where it breaks off."""
        fault = self.cloud.faults.take(self.request_line, "cut_upload")
        through = min(fault.number, self.left) if fault else self.left
        buffer = memoryview(bytearray(CHUNK))
        while through:
            count = self.rfile.readinto1(buffer[: min(through, len(buffer))])
            if not count:
                raise Reset
            through -= count
            self.left -= count
            sink.write(buffer[min(skip, count) : count])
            skip -= min(skip, count)
        if fault:
            raise Reset

    # --- answers -----------------------------------------------------------------------------

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Answer."""
        if self.cloud.faults.take(self.request_line, "lost_answer"):
            raise Reset
        self.answered = True
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        if self.left:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, document: Any) -> None:
        """Answer with a document."""
        body = json.dumps(document).encode()
        self.send(200, {"Content-Type": "application/json; charset=UTF-8"}, body)

    def send_object(self, stored: Stored) -> None:
        """Answer with an object's bytes, or with the range that was asked for."""
        start, stop, status = self._range(stored.size)
        headers = {
            "Content-Type": str(stored.own["contentType"]),
            "Content-Length": str(stop - start),
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Stored-Content-Length": str(stored.size),
            "X-Goog-Hash": f"crc32c={stored.crc32c}",
        }
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{stored.size}"
        with stored.file.open("rb") as file:
            self.send(status, headers)
            if self.command != "HEAD":
                self.send_bytes(file, start, stop)

    def send_bytes(self, file: IO[bytes], start: int, stop: int) -> None:
        """Send a part of a file, after the head of the answer."""
        fault = self.cloud.faults.take(self.request_line, "cut_download", "damage")
        if fault is not None and fault.kind == "damage" and start <= fault.number < stop:
            file.seek(start)
            data = bytearray(file.read(stop - start))
            data[fault.number - start] ^= 1
            self.wfile.write(data)
            return
        cut = fault is not None and fault.kind == "cut_download"
        count = min(fault.number, stop - start) if fault is not None and cut else stop - start
        if count:
            self.connection.sendfile(file, start, count)
        if cut:
            raise Reset

    def _range(self, size: int) -> tuple[int, int, int]:
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if match is None or match[0] == "bytes=-":
            return 0, size, 200
        start = int(match[1]) if match[1] else max(0, size - int(match[2]))
        stop = min(size, int(match[2]) + 1) if match[1] and match[2] else size
        if start >= size:
            headers = {"Content-Range": f"bytes */{size}"}
            raise Refusal(416, "requestedRangeNotSatisfiable", "Not satisfiable", **headers)
        return start, stop, 206

    def _refuse(self, refusal: Refusal) -> None:
        if self.answered:
            raise ConnectionError
        error = {"message": refusal.message, "domain": "global", "reason": refusal.reason}
        document = {
            "error": {"code": refusal.status, "message": refusal.message, "errors": [error]}
        }
        headers = {"Content-Type": "application/json; charset=UTF-8", **refusal.headers}
        with contextlib.suppress(Reset):
            self.send(refusal.status, headers, json.dumps(document).encode())
            return
        self._reset()

    def _reset(self) -> None:
        """Let the other side see a reset, not an end."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()


Route = Callable[[Any, "re.Match[str]", Query], None]
