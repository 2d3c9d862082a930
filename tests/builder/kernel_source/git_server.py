"""A real Git server on loopback, with faults that a test asks for, and hosts that fetch from it."""

import gzip
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import GitSource
from kgym.errors import KgymError
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.git_mirrors import Mirrors
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits

LOOPBACK = (ip_network("127.0.0.1/32"),)
# All files come at once; or in lots, for tests of what happens between two of them.
LIMITS = SourceLimits(objects_at_once=1000, silence_seconds=2, seconds=60)
LOTS = replace(LIMITS, objects_at_once=10)
FILES = 60
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

    def linux(self, name: str, repository: str = "linux") -> GitSource:
        """Return a commit of a repository as a source."""
        return GitSource(url=f"{self.url}/{repository}/.git", commit=name)

    def at(self, name: str, repository: str = "linux") -> str:
        """Return the id of an object."""
        return git(self.root / repository, "rev-parse", name)

    def git(self, *words: str, stdin: bytes = b"") -> str:
        """Run Git in `linux`."""
        return git(self.root / "linux", *words, stdin=stdin)

    def commit(self, message: str, **files: str) -> str:
        """Commit these changes of `linux`; return the commit's id."""
        return commit(self.root / "linux", message, **files)

    def branch(self, tree: str | bytes) -> str:
        """Commit a tree, whatever Git thinks of its bytes, on a branch of `linux` of its own."""
        if isinstance(tree, bytes):
            words = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
            tree = self.git(*words, stdin=tree)
        made = self.git("commit-tree", tree, "-m", "odd")
        self.git("update-ref", f"refs/heads/of-{made}", made)
        return made

    def sources(self, limits: SourceLimits | None = None, **more: Any) -> KernelSources:
        """Return the sources of the host that fetches from the server."""
        return sources(self.host, limits or LIMITS, **more)

    @property
    def store(self) -> Path:
        """Where that host keeps objects."""
        return store(self.host)

    def kept(self) -> int:
        """Return how many objects that host has."""
        lines = git(self.store, "count-objects", "-v").splitlines()
        return sum(int(each.split()[1]) for each in lines if each.startswith(("in-pack", "count")))

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
        head, _, reply = self.git.answer(self, body).partition(b"\r\n\r\n")
        fields = [line.partition(": ")[::2] for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        sent: bytes | None = reply
        if b"PACK" in reply[:4000] or b"packfile" in reply[:4000]:
            sent = self.git.fault(len(self.git.sent), reply) if self.git.fault else reply
            self.git.sent.append(len(reply))
        self.send_response(status)
        for name, value in fields:
            if name not in {"Status", "Content-Length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply) if sent is None else len(sent)))
        self.end_headers()
        if sent is None:
            self.wfile.write(reply[: len(reply) // 2])
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


# --- hosts that fetch from it ---------------------------------------------------------------


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    return git_bytes(folder, *words, stdin=stdin).decode().strip()


def git_bytes(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    settings = ("user.name=t", "user.email=t@localhost", "safe.directory=*", "gc.auto=0")
    argv = ["git", "-C", folder, *(word for each in settings for word in ("-c", each)), *words]
    done = subprocess.run(argv, check=True, timeout=60, capture_output=True, input=stdin)
    return done.stdout


def commit(folder: Path, message: str, **files: str) -> str:
    """Commit these changes; return the commit's id."""
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


class Reports:
    """What is told of progress."""

    def __init__(self) -> None:
        self.fetched: list[float] = []

    def __call__(self, stage: str, done: float, _total: float | None) -> None:
        if stage == "fetch":
            self.fetched.append(done)


def sources(
    tmp_path: Path, limits: SourceLimits = LIMITS, mirrors: Path | None = None
) -> KernelSources:
    return KernelSources(tmp_path / "cache", Origins((), LOOPBACK, Mirrors(mirrors)), limits)


async def marker(kernels: KernelSources, source: GitSource) -> str:
    """Take the source; return what its Makefile says. All of its files are there."""
    tree = (await kernels.get(source, Reports())).tree
    assert len(list(tree.glob("d*/*.c"))) == FILES
    return (tree / "Makefile").read_text()


async def refusal(kernels: KernelSources, source: GitSource) -> KgymError:
    with pytest.raises(KgymError) as caught:
        await kernels.get(source, Reports())
    assert caught.value.message.isprintable()
    return caught.value


def store(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "repositories" / "store"


def held(folder: Path, name: str) -> dict[bytes, tuple[bytes, bytes]]:
    """What a commit holds: of each path, whether it can be run or is a link, and its bytes."""
    contents = {}
    for line in filter(None, git_bytes(folder, "ls-tree", "-r", "-z", name).split(b"\0")):
        about, _, path = line.partition(b"\t")
        mode, _kind, blob = about.split()
        contents[path] = (mode, git_bytes(folder, "cat-file", "blob", blob.decode()))
    return contents


def unpacked(tree: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """What a folder holds, in the same form."""
    contents = {}
    for path in tree.rglob("*"):
        name = os.fsencode(path.relative_to(tree))
        if path.is_symlink():
            contents[name] = (b"120000", os.fsencode(os.readlink(path)))
        elif path.is_file():
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            contents[name] = (mode, path.read_bytes())
    return contents
