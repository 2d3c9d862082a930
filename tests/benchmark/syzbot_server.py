"""A server on loopback that answers as syzbot's dashboard, cgit and lore do, and fails as told."""

import gzip
import hashlib
import html
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from kgym.bench import syzbot_data
from kgym.bench.bug_record import BugRecord, Status

PARENT = "d" * 40
COMMITTED = "2022-09-20 12:20:17 +0000"
DIFF = "diff --git a/net/f.c b/net/f.c\n--- a/net/f.c\n+++ b/net/f.c\n@@ -1 +1 @@\n-two\n+2\n"
MAIL = Path(__file__).with_name("discussion.mbox").read_text()


@dataclass(frozen=True)
class Fault:
    """What is answered instead, once."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class Syzbot:
    """The pages, what was asked, and what is to go wrong."""

    def __init__(self, bugs: Sequence[BugRecord] = ()) -> None:
        self.bugs = list(bugs)
        self.asked: Counter[str] = Counter()
        self.not_modified = 0
        self.faults: dict[str, list[Fault]] = {}
        self.url = ""

    def body(self, path: str, query: dict[str, str]) -> bytes | None:
        """Return the page; None if there is none."""
        lists: dict[str, Status] = {
            "/upstream": "open",
            "/upstream/fixed": "fixed",
            "/upstream/invalid": "invalid",
        }
        if path in lists:
            return self._list(lists[path], as_json="json" in query)
        if path == "/bug":
            return self._bug(query)
        if path == "/text":
            return f"the {query['tag']}\n".encode()
        if path.endswith("/patch/"):
            return self._patch(query["id"])
        if path.endswith("/commit/"):
            return _commit_page(query["id"])
        if path.endswith("/t.mbox.gz"):
            extid, title = "1" * 20, "a bug"
            return gzip.compress(MAIL.format(extid=extid, title=title).encode(), mtime=0)
        return None

    def _list(self, status: Status, *, as_json: bool) -> bytes:
        bugs = [bug for bug in self.bugs if bug.status == status]
        links = [_link(bug) for bug in bugs]
        if as_json:
            listed = [
                {"title": bug.title, "link": link} for bug, link in zip(bugs, links, strict=True)
            ]
            return json.dumps({"version": 1, "Bugs": listed or None}).encode()
        rows = "".join(
            f'<tr><td><a href="{html.escape(link)}">{html.escape(bug.title)}</a></td><td>syz</td>'
            f'<td><a href="https://elsewhere.example">10d</a></td></tr>'
            for bug, link in zip(bugs, links, strict=True)
        )
        head = "<tr><th><a href=#>Title</a></th><th>Repro</th><th>Reported</th></tr>"
        return f"<table><caption>{status} ({len(bugs)})</caption>{head}{rows}</table>".encode()

    def _bug(self, query: dict[str, str]) -> bytes | None:
        wanted = query.get("extid") or query.get("id")
        bug = next((bug for bug in self.bugs if wanted in {bug.id, bug.extid}), None)
        if bug is None:
            return None
        if "json" in query:
            return json.dumps(syzbot_data.write(bug)).encode()
        return f"Reported-by: syzbot+{bug.extid}@syzkaller.example<br>".encode()

    def _patch(self, commit: str) -> bytes:
        head = f"From {commit} Mon Sep 17 00:00:00 2001\nFrom: A <a@b.example>\n"
        head += "Date: Tue, 20 Sep 2022 11:00:00 +0000\nSubject: net: fix f\n\nIt was wrong.\n"
        return f"{head}---\n net/f.c | 2 +-\n\n{DIFF}-- \ncgit\n".encode()


def _commit_page(commit: str) -> bytes:
    rows = [("author", "A", "2022-09-01 00:00:00 +0000"), ("committer", "B", COMMITTED)]
    text = "".join(f"<tr><th>{a}</th><td>{b}</td><td>{c}</td></tr>" for a, b, c in rows)
    text += f"<tr><th>commit</th><td colspan=2>{commit}</td></tr>"
    return f"<table>{text}<tr><th>parent</th><td><a href=x>{PARENT}</a> (a)</td></tr>".encode()


def _link(bug: BugRecord) -> str:
    """Return the link of a list: newer bugs are known by the ids of their mails."""
    return f"/bug?extid={bug.extid}" if bug.extid and bug.id[0] < "e" else f"/bug?id={bug.id}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, or fail as told."""
        syzbot = cast(Any, self.server).syzbot
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        syzbot.asked[self.path] += 1
        faults = syzbot.faults.get(self.path)
        if faults:
            self._fail(faults.pop(0))
            return
        body = syzbot.body(parts.path, query)
        if body is None:
            self._send(404, b"")
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            syzbot.not_modified += 1
            self._send(304, b"", ETag=tag)
            return
        self._send(200, body, ETag=tag)

    def _fail(self, fault: Fault) -> None:
        body = fault.body if fault.body is not None else b"broken"
        if fault.cut:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 1000))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True
            return
        self._send(fault.status, body, **fault.headers)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(syzbot: Syzbot) -> Iterator[str]:
    """Serve the pages; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    cast(Any, server).syzbot = syzbot
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    syzbot.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield syzbot.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
