"""A sweep and a scheduler that fails: it goes on where that passes, and ends where it does not."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from kgym.api.steps import Patch
from kgym.bugs import bundle
from kgym.bugs.sweep import Candidate, Subject, SweepOptions, sweep
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError
from kgym_cli.platforms.embedded_platform import Platform

PATCH = "--- a/drivers/a.c\n+++ b/drivers/a.c\n@@ -1 +1 @@\n-int a;\n+int b;\n"


@contextmanager
def failing(upstream: str) -> Iterator[str]:
    """A proxy that takes jobs, and fails whenever one is to be looked at; with its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept = {"content-type", "idempotency-key"}
            headers = {name: text for name, text in self.headers.items() if name.lower() in kept}
            given = httpx.post(f"{upstream}{self.path}", content=body, headers=headers, timeout=60)
            self._answer(given.status_code, given.content)

        def do_GET(self) -> None:
            self._answer(500, b"{}")

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.anyio
@pytest.mark.thorough
async def test_a_job_that_can_never_be_looked_at_ends_the_sweep(tmp_path: Path) -> None:
    subject = Subject(
        bundle.load("watch-queue-filter"), [Candidate("one", Patch(name="one", diff=PATCH))]
    )
    with Platform(tmp_path / "data", work=False) as platform, failing(platform.url) as url:
        async with AsyncClient(url) as client, asyncio.timeout(30):
            options = SweepOptions("one", patience=1)
            with pytest.raises(InfrastructureError):
                await sweep(client, [subject], options, lambda _: None)
