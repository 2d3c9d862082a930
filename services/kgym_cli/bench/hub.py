"""Dataset repositories on Hugging Face's hub: a dataset or results are pushed and pulled.

Sources: huggingface/huggingface.js, packages/hub/src (commit, create-repo, paths-info);
git-lfs/git-lfs, docs/api/batch.md. Over HTTP, since downloads of the hub's own package have no
limits, and only files of known names are wanted here.
"""

import base64
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import AliasChoices, BaseModel, Field, TypeAdapter

from kgym.bench import attempt_files, dataset
from kgym.bench.dataset_files import refuse_used
from kgym.bench.syzbot_data import refused_at
from kgym.client import protocol
from kgym.errors import Conflict, InfrastructureError, NotFound, UserError
from kgym.transport.artifact_storage import sha256_of
from kgym_cli.bench import manifest

T = TypeVar("T")
# Maximum bytes of a file, and of an answer.
FILE, ANSWER = 2 << 30, 1 << 20
_SECONDS = 120.0
_BRANCH = "main"
_NAMES = (*manifest.FILES, manifest.NAME)


class _Large(BaseModel):
    oid: str


class _File(BaseModel):
    """A file in the repository, or one that is to be there; further fields are ignored."""

    path: str
    size: int = Field(0, ge=0)
    oid: str = Field("", description="of Git's blob")
    lfs: _Large | None = None
    mode: str = Field("regular", alias="uploadMode")

    def is_same(self, path: Path) -> bool:
        """Return whether a local file has this content."""
        if self.lfs is not None:
            return self.lfs.oid == sha256_of(path)
        header = f"blob {path.stat().st_size}\0".encode()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.sha1(header, usedforsecurity=False))
        return self.oid == digest.hexdigest()


class _Action(BaseModel):
    href: str
    header: dict[str, str] = {}


class _Object(BaseModel):
    actions: dict[str, _Action] = Field({}, description="none if the content is there already")


class _Answer(BaseModel):
    """An answer of the hub, of which each has some fields; further ones are ignored."""

    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] = Field(
        "", validation_alias=AliasChoices("sha", "commitOid")
    )
    files: list[_File] = []
    objects: list[_Object] = []


class Hub:
    """A repository `OWNER/NAME` of the hub at `url`. Its answers are as untrusted as its files."""

    def __init__(self, url: str, repository: str, token: str | None) -> None:
        self._url, self._repository, self._token = url.rstrip("/"), repository, token
        self.page = f"{self._url}/datasets/{repository}"
        self._api = f"{self._url}/api/datasets/{repository}"

    def push(self, folder: Path, *, private: bool) -> tuple[str, list[str]]:
        """Make the repository hold the folder's files; return its commit, and the changed names.

        A missing repository is created. Raises Conflict `dataset_exists` if it holds another
        dataset, NotFound `no_repository`, UserError and InfrastructureError `hub_refused`,
        InfrastructureError `hub_unreachable`, UserError `hub_damaged`.
        """
        ours = {name: folder / name for name in _NAMES if (folder / name).is_file()}
        try:
            commit, there = self._files(_BRANCH)
        except NotFound:
            owner, _, name = self._repository.partition("/")
            about = {"type": "dataset", "name": name, "organization": owner, "private": private}
            self._ask("POST", f"{self._url}/api/repos/create", json=about)
            commit, there = self._files(_BRANCH)
        # Figures name their dataset: what is published never changes.
        if (about_file := there.get(dataset.ABOUT)) and not about_file.is_same(ours[dataset.ABOUT]):
            message = f"{self.page} holds another dataset, which never changes: name another one"
            raise Conflict("dataset_exists", message)
        new = [n for n, path in ours.items() if n not in there or not there[n].is_same(path)]
        gone = [name for name in there if name not in ours]
        if not new and not gone:
            return commit, []
        header = {"summary": "kgym bench push", "parentCommit": commit}
        lines = [{"key": "header", "value": header}, *self._sent([ours[name] for name in new])]
        lines += [{"key": "deletedFile", "value": {"path": name}} for name in gone]
        body = "".join(f"{json.dumps(line)}\n" for line in lines)
        kind = {"Content-Type": "application/x-ndjson"}
        url = f"{self._api}/commit/{_BRANCH}"
        answer = self._asked(_Answer, "POST", url, content=body, headers=kind)
        return answer.commit, [*new, *gone]

    def pull(self, revision: str, into: Path) -> tuple[str, list[str]]:
        """Write the repository's files into a new folder; return its commit, and their names.

        Only files with the names of a dataset's and results' files are taken, and only if all have
        the hub's digests, `dataset.json`'s and `manifest.json`'s. Raises as `push` does, NotFound
        `no_dataset`, UserError `folder_in_use`, `too_many_bytes`, `bad_results`.
        """
        refuse_used(into)
        commit, there = self._files(revision)
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
            folder = Path(temporary) / "new"
            folder.mkdir()
            for name, file in there.items():
                if file.size > FILE:
                    raise UserError("too_many_bytes", f"{name} has more than {FILE >> 20} MiB")
                url = f"{self.page}/resolve/{commit}/{name}"
                with (folder / name).open("wb") as out:
                    out.writelines(self._pieces("GET", url, file.size))
                if not file.is_same(folder / name):
                    raise UserError("hub_damaged", f"{url} does not have the digest of the hub")
            dataset.load(folder)
            if attempt_files.NAME in there and (problems := manifest.differences(folder)):
                raise UserError("bad_results", f"{self.page}: {'; '.join(problems[:5])}")
            folder.rename(into)
        return commit, list(there)

    def _files(self, revision: str) -> tuple[str, dict[str, _File]]:
        """Return the commit of a revision, and its files with our names."""
        url = f"{self._api}/revision/{quote(revision, safe='')}"
        commit = self._asked(_Answer, "GET", url).commit
        url, body = f"{self._api}/paths-info/{commit}", {"paths": _NAMES, "expand": False}
        files = self._asked(list[_File], "POST", url, json=body)
        return commit, {file.path: file for file in files if file.path in _NAMES}

    def _sent(self, paths: list[Path]) -> Iterator[dict[str, Any]]:
        """Upload large files; yield the line of a commit for each file."""
        for path in paths:
            size, url = path.stat().st_size, f"{self._api}/preupload/{_BRANCH}"
            about = {"path": path.name, "size": size, "sample": _text(path, 512)}
            answer = self._asked(_Answer, "POST", url, json={"files": [about]})
            # The storage of large files refuses empty ones.
            if size and any(file.mode == "lfs" for file in answer.files):
                key, value = "lfsFile", {"algo": "sha256", **self._stored(path)}
            else:
                key, value = "file", {"encoding": "base64", "content": _text(path)}
            yield {"key": key, "value": {"path": path.name, **value}}

    def _stored(self, path: Path) -> dict[str, Any]:
        """Upload a file to the hub's storage of large files, unless it is there."""
        large = {"oid": sha256_of(path), "size": path.stat().st_size}
        body = {"operation": "upload", "transfers": ["basic"], "objects": [large]}
        kind = dict.fromkeys(("Accept", "Content-Type"), "application/vnd.git-lfs+json")
        url = f"{self.page}.git/info/lfs/objects/batch"
        answer = self._asked(_Answer, "POST", url, content=json.dumps(body), headers=kind)
        for stored in answer.objects:
            if upload := stored.actions.get("upload"):
                with path.open("rb") as file:
                    self._ask("PUT", upload.href, content=file, headers=upload.header)
            if verify := stored.actions.get("verify"):
                self._ask("POST", verify.href, json=large, headers=verify.header)
        return large

    def _asked(self, model: type[T], method: str, url: str, **request: Any) -> T:
        with refused_at(url, "hub_damaged"):
            return TypeAdapter(model).validate_json(self._ask(method, url, **request))

    def _ask(self, method: str, url: str, **request: Any) -> bytes:
        return b"".join(self._pieces(method, url, ANSWER, **request))

    def _pieces(self, method: str, url: str, most: int, **request: Any) -> Iterator[bytes]:
        """Yield the body of an answer; it may have at most this many bytes."""
        # Large files are kept elsewhere, where the token must not arrive.
        token = self._token if url.startswith(f"{self._url}/") else None
        options = protocol.options(url, token) | {"timeout": _SECONDS, "follow_redirects": True}
        options["event_hooks"] = {"request": [self._refuse_plain]}
        # Unpacked, a small answer could have any size.
        options["headers"]["Accept-Encoding"] = "identity"
        try:
            with httpx.Client(**options) as client, client.stream(method, url, **request) as answer:
                if answer.is_error:
                    raise _refusal(url, answer)
                for piece in answer.iter_raw():
                    most -= len(piece)
                    if most < 0:
                        raise UserError("hub_damaged", f"{url} sends more than it should")
                    yield piece
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InfrastructureError("hub_unreachable", f"{url}: {error}") from error

    def _refuse_plain(self, request: httpx.Request) -> None:
        # Also of redirects: a hub may not send requests to this machine's network.
        if self._url.startswith("https:") and request.url.scheme != "https":
            raise httpx.UnsupportedProtocol(f"the hub refers to {request.url}")


def _refusal(url: str, answer: httpx.Response) -> Exception:
    words = answer.headers.get("X-Error-Message", answer.reason_phrase)[:500]
    message = f"{url} answered {answer.status_code}: {words}"
    if answer.status_code == 404:
        return NotFound("no_repository", message)
    if answer.is_client_error:
        return UserError("hub_refused", f"{message} (HF_TOKEN is the token)")
    return InfrastructureError("hub_refused", message)


def _text(path: Path, most: int = -1) -> str:
    with path.open("rb") as file:
        return base64.b64encode(file.read(most)).decode()
