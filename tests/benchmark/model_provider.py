"""A provider of a model, on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Provider(ThreadingHTTPServer):
    """Answers as a provider does, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        assert self.server.hold.wait(30)
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000}
        answer = {"choices": [f"answer {len(self.server.asked)}"], "usage": usage}
        if body.get("user") == "silent":
            del answer["usage"]
        if body.get("user") == "echo":
            answer["choices"] = [self.headers["authorization"]]
        data = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("set-cookie", "a=b")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
