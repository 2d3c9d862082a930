"""A server on loopback that answers as Hugging Face's hub does, and deceives as told.

Sources: those of `kgym_cli.bench.hub`. Its storage of large files is at another host name, as the
hub's is.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

TOKEN = "hf_of_the_test"


@dataclass
class Repository:
    """Its commits, each with all files; the paths of large ones."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def commit(self, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits[name] = files
        return name


class FakeHub:
    """The hub; `regular` is the size beyond which files are large."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}
        self.regular = 10 << 20
        self.url = self.storage_url = ""
        # Tokens that arrived at the storage.
        self.leaked: list[str] = []
        self.verified: list[str] = []
        # Changes a list of files, or the bytes that are sent.
        self.lists: Callable[[list[dict[str, Any]]], object] = lambda files: None
        self.sends: Callable[[bytes], bytes] = lambda content: content
        # Changes an answer, by the last part of its path.
        self.alters: Callable[[str, Any], object] = lambda what, answer: None

    def answer(self, method: str, path: str, body: bytes, token: str) -> tuple[int, bytes, str]:
        """Return status, body, and where to look instead."""
        parts = path.strip("/").split("/")
        if parts[0] == "storage":
            self.leaked += [token] * bool(token)
            if method == "PUT":
                self.storage[parts[1]] = body
                return (200 if _sha256(body) == parts[1] else 400), b"", ""
            return 200, self.sends(self.storage[parts[1]]), ""
        if token != f"Bearer {TOKEN}":
            return 401, b"Invalid credentials", ""
        if parts[:2] == ["api", "datasets"]:
            return self._of_repository(f"{parts[2]}/{parts[3]}", parts[4], parts[5], body)
        match [method, *parts]:
            case ["POST", "api", "repos", "create"]:
                about = json.loads(body)
                name = f"{about['organization']}/{about['name']}"
                assert about["type"] == "dataset"
                assert name not in self.repositories
                self.repositories[name] = Repository(about["private"])
                self.repositories[name].commit({".gitattributes": b"*.bin filter=lfs\n"})
                return 200, json.dumps({"url": f"{self.url}/datasets/{name}"}).encode(), ""
            case ["POST", "verify"]:
                self.verified.append(json.loads(body)["oid"])
                return 200, b"", ""
            case ["POST", "datasets", _, _, "info", "lfs", "objects", "batch"]:
                answer = self._batch(json.loads(body))
                self.alters("batch", answer)
                return 200, json.dumps(answer).encode(), ""
            case ["GET", "datasets", owner, name, "resolve", commit, file]:
                repository = self.repositories[f"{owner}/{name}"]
                content = repository.commits[commit][file]
                if file in repository.large:
                    return 302, b"", f"{self.storage_url}/storage/{_sha256(content)}"
                return 200, self.sends(content), ""
        raise AssertionError(f"{method} {path}")

    def _of_repository(
        self, name: str, what: str, revision: str, body: bytes
    ) -> tuple[int, bytes, str]:
        if (repository := self.repositories.get(name)) is None:
            return 404, b"Repository not found", ""
        asked = json.loads(body) if what in {"paths-info", "preupload"} else body
        answer: object = getattr(self, f"_{what.replace('-', '_')}")(repository, revision, asked)
        self.alters(what, answer)
        return (412 if answer is None else 200), json.dumps(answer).encode(), ""

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["operation"] == "upload"
        objects: list[dict[str, Any]] = []
        for large in asked["objects"]:
            upload = {"href": f"{self.storage_url}/storage/{large['oid']}"}
            actions = {"upload": upload, "verify": {"href": f"{self.url}/verify"}}
            there = large["oid"] in self.storage
            objects.append(large | ({} if there else {"actions": actions}))
        return {"transfer": "basic", "objects": objects}

    def _revision(self, repository: Repository, revision: str, _: object) -> object:
        sha = repository.head if revision == "main" else revision
        siblings = [{"rfilename": path} for path in repository.commits[sha]]
        return {"sha": sha, "private": repository.private, "siblings": siblings}

    def _paths_info(self, repository: Repository, revision: str, asked: dict[str, Any]) -> object:
        there = repository.commits[revision]
        files: list[dict[str, Any]] = []
        for path in asked["paths"]:
            if path in there:
                blob = f"blob {len(there[path])}\0".encode() + there[path]
                oid = hashlib.sha1(blob).hexdigest()
                about = {"type": "file", "path": path, "size": len(there[path]), "oid": oid}
                if path in repository.large:
                    about |= {"lfs": {"oid": _sha256(there[path]), "size": 1, "pointerSize": 130}}
                files.append(about)
        self.lists(files)
        return files

    def _preupload(self, _: Repository, __: str, asked: dict[str, Any]) -> object:
        modes = [
            {"path": f["path"], "uploadMode": "lfs" if f["size"] > self.regular else "regular"}
            for f in asked["files"]
        ]
        assert all(len(base64.b64decode(file["sample"])) <= 512 for file in asked["files"])
        return {"files": modes}

    def _commit(self, repository: Repository, _: str, body: bytes) -> object:
        header, *changes = map(json.loads, body.splitlines())
        if header["value"]["parentCommit"] != repository.head:
            return None
        files = dict(repository.commits[repository.head])
        for change in changes:
            path, value = change["value"]["path"], change["value"]
            repository.large -= {path}
            match change["key"]:
                case "file":
                    files[path] = base64.b64decode(value["content"])
                    assert len(files[path]) <= self.regular
                case "lfsFile":
                    repository.large |= {path}
                    files[path] = self.storage[value["oid"]]
                case "deletedFile":
                    del files[path]
        return {"success": True, "commitOid": repository.commit(files), "commitUrl": self.url}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        hub = cast(Any, self.server).hub
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        token = self.headers.get("Authorization", "")
        status, answer, location = hub.answer(self.command, self.path, body, token)
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serving() -> Iterator[FakeHub]:
    """Context manager: the hub, on a free port."""
    hub = FakeHub()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        cast(Any, server).hub = hub
        hub.url = f"http://127.0.0.1:{server.server_port}"
        hub.storage_url = f"http://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
