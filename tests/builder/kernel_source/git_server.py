"""A real Git server on loopback: `git http-backend`, with faults that a test asks for."""

import gzip
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# From the number of an answer with objects, from 0, and its bytes to what is sent of it; None, and
# it stalls.
Fault = Callable[[int, bytes], bytes | None]


@dataclass
class GitServer:
    """The server of the repositories below a folder, and what it sent."""

    root: Path
    url: str = ""
    fault: Fault | None = None
    status: int | None = None
    """With which it refuses everything."""
    newest_protocol: bool = True
    """Whether it speaks version 2 of the protocol, in which any object can be asked for."""
    sent: list[int] = field(default_factory=list)
    """Bytes of each answer with objects."""
    asked: list[bytes] = field(default_factory=list)
    """What was asked for."""
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def host(self) -> Path:
        """The folder of a test, in which a host keeps what it fetches, beside the server's."""
        return self.root.parent

    def answer(self, request: "_Request", body: bytes) -> bytes:
        """Return what the program answers, with its head."""
        path, _, query = request.path.partition("?")
        version = request.headers.get("Git-Protocol", "") if self.newest_protocol else ""
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,  # what it says of an error is for the client
            timeout=120,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "REQUEST_METHOD": request.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "GIT_PROTOCOL": version,
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        return done.stdout


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    git: GitServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        body = self._body()
        body = gzip.decompress(body) if self.headers["Content-Encoding"] else body
        self.git.asked.append(body)
        self._answer(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if length := self.headers["Content-Length"]:
            return self.rfile.read(int(length))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes) -> None:
        if self.git.status is not None:
            self.send_response(self.git.status)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, _, said = self.git.answer(self, body).partition(b"\r\n\r\n")
        fields = [line.partition(": ")[::2] for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        sent: bytes | None = said
        if b"PACK" in said[:4000] or b"packfile" in said[:4000]:
            sent = self.git.fault(len(self.git.sent), said) if self.git.fault else said
            self.git.sent.append(len(said))
        self.send_response(status)
        for name, value in fields:
            if name not in {"Status", "Content-Length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(said) if sent is None else len(sent)))
        self.end_headers()
        if sent is None:
            self.wfile.write(said[: len(said) // 2])
            self.wfile.flush()
            self.git.stopping.wait(60)
            self.close_connection = True
            return
        self.wfile.write(sent)


@contextmanager
def git_serving(root: Path) -> Iterator[GitServer]:
    """Serve the repositories below a folder."""
    git = GitServer(root)
    request = type("Request", (_Request,), {"git": git})
    server = ThreadingHTTPServer(("127.0.0.1", 0), request)
    git.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield git
    finally:
        git.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
