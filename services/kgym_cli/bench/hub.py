"""Dataset repositories on Hugging Face's hub: a dataset or results are pushed and pulled.

Sources: huggingface/huggingface.js, packages/hub/src (commit, create-repo, paths-info);
git-lfs/git-lfs, docs/api/batch.md. Over HTTP, since downloads of the hub's own package have no
limits, and only files of known names are wanted here.
"""

import base64
import hashlib
import json
import os
import re
import tempfile
import time
from asyncio import timeout_at
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from h11 import LocalProtocolError
from httpx import Timeout, UnsupportedProtocol
from pydantic import AliasChoices, AliasPath, BaseModel, Field, TypeAdapter

from kgym.api.faults import refused_at
from kgym.bench import attempt_files, dataset
from kgym.bench.dataset_files import read_bounded, refuse_used
from kgym.client import protocol
from kgym.errors import Conflict, InfrastructureError, NotFound, UserError
from kgym.host.separate_process import within
from kgym_cli.bench import card, manifest

T = TypeVar("T")
# Maximum bytes of a file, of one within a commit, and of an answer.
FILE, REGULAR, ANSWER = 256 << 20, 10 << 20, 1 << 20
# Maximum seconds without a byte; of a request, or of reading the pulled files; of all requests.
_SILENCE, _REQUEST, _TOTAL = 120.0, 1800.0, 3600.0
_BRANCH = "main"
_NAMES = (*manifest.FILES, manifest.NAME)


class _File(BaseModel):
    """A file in the repository; further fields are ignored."""

    path: str
    size: int = Field(0, ge=0)
    oid: str = Field("", description="of Git's blob")
    sha256: str | None = Field(None, validation_alias=AliasPath("lfs", "oid"))

    def is_same(self, content: bytes) -> bool:
        """Return whether a local file has this content."""
        if self.sha256 is not None:
            return self.sha256 == hashlib.sha256(content).hexdigest()
        blob = f"blob {len(content)}\0".encode() + content
        return self.oid == hashlib.sha1(blob, usedforsecurity=False).hexdigest()


class _Action(BaseModel):
    href: str
    header: dict[str, str] = {}


class _Commit(BaseModel):
    name: str = Field(pattern="^[0-9a-f]{40}$", validation_alias=AliasChoices("sha", "commitOid"))
    private: bool = Field(False, description="of the repository")


class _Upload(BaseModel):
    """The hub's answer on how to send a file: within a commit, or to which other address."""

    mode: str = Field("regular", validation_alias=AliasPath("files", 0, "uploadMode"))
    # None if the content is there already.
    actions: dict[str, _Action] = Field({}, validation_alias=AliasPath("objects", 0, "actions"))


class Hub:
    """A repository `OWNER/NAME` of the hub at `url`. Its answers are as untrusted as its files."""

    def __init__(self, url: str, repository: str, token: str | None) -> None:
        self._url, self._repository = url.rstrip("/"), repository
        self._token = (token or "").strip()
        # Errors about a header quote its value, here the token.
        if not re.fullmatch("[!-~]*", self._token):
            raise UserError("hub_refused", "HF_TOKEN has characters that no token has")
        self._until = time.monotonic() + _TOTAL
        self.page = f"{self._url}/datasets/{repository}"
        self._api = f"{self._url}/api/datasets/{repository}"

    async def push(self, folder: Path, *, private: bool) -> tuple[str, list[str]]:
        """Make the repository hold the folder's files; return its commit, and the changed names.

        The card and the manifest are written into the folder before. A missing repository is
        created. Raises Conflict `dataset_exists` if it holds another dataset, Conflict
        `repository_in_use` if it is public and should be `private`, or holds results and the folder
        has none, NotFound `no_repository`, UserError and InfrastructureError `hub_refused`,
        InfrastructureError `hub_unreachable`, UserError `hub_damaged`, `unsafe_file`, and as the
        readers of datasets and manifests do.
        """
        ours = _prepared(folder)
        try:
            commit, there = await self._files(_BRANCH)
        except NotFound:
            owner, _, name = self._repository.partition("/")
            about = {"type": "dataset", "name": name, "organization": owner, "private": private}
            await self._ask("POST", f"{self._url}/api/repos/create", json=about)
            commit, there = await self._files(_BRANCH)
        if private and not commit.private:
            raise Conflict("repository_in_use", f"{self.page} is public: make it private there")
        # Figures name their dataset, so a published dataset never changes.
        if (about_file := there.get(dataset.ABOUT)) and not about_file.is_same(ours[dataset.ABOUT]):
            message = f"{self.page} holds another dataset, which never changes: name another one"
            raise Conflict("dataset_exists", message)
        new = [n for n in ours if n not in there or not there[n].is_same(ours[n])]
        gone = [name for name in there if name not in ours]
        if gone and attempt_files.NAME not in ours:
            message = f"{self.page} has {', '.join(gone)}, this folder no results: name another one"
            raise Conflict("repository_in_use", message)
        if not new and not gone:
            return commit.name, []
        about = {"summary": "kgym bench push", "parentCommit": commit.name}
        lines: list[dict[str, Any]] = [{"key": "header", "value": about}]
        lines += [await self._sent(name, ours[name]) for name in new]
        lines += [{"key": "deletedFile", "value": {"path": name}} for name in gone]
        body = "".join(f"{json.dumps(line)}\n" for line in lines)
        kind = {"Content-Type": "application/x-ndjson"}
        url = f"{self._api}/commit/{_BRANCH}"
        commit = await self._asked(_Commit, "POST", url, content=body, headers=kind)
        return commit.name, [*new, *gone]

    async def pull(self, revision: str, into: Path) -> tuple[str, list[str]]:
        """Write the repository's files into a new folder; return its commit, and their names.

        Only files that a dataset or results consist of are taken, by name, and only if all digests
        match: the hub's, and those in `dataset.json` and `manifest.json`. Raises as `push` does,
        NotFound `no_dataset`, UserError `folder_in_use`, `too_many_bytes`, `too_much_work`,
        `bad_results`.
        """
        refuse_used(into)
        commit, there = await self._files(revision)
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
            folder = Path(temporary) / "new"
            folder.mkdir()
            for name, file in there.items():
                if file.size > FILE:
                    raise UserError("too_many_bytes", f"{name} has more than {FILE >> 20} MiB")
                url = f"{self.page}/resolve/{commit.name}/{name}"
                content = await self._ask("GET", url, file.size)
                if not file.is_same(content):
                    raise UserError("hub_damaged", f"{url} does not have the digest of the hub")
                (folder / name).write_bytes(content)
            if problems := await within(_REQUEST, 6 << 30, _problems, folder):
                raise UserError("bad_results", f"{self.page}: {'; '.join(problems[:5])}")
            folder.rename(into)
        return commit.name, list(there)

    async def _files(self, revision: str) -> tuple[_Commit, dict[str, _File]]:
        """Return the commit of a revision, and its files with our names."""
        url = f"{self._api}/revision/{quote(revision, safe='')}"
        commit = await self._asked(_Commit, "GET", url)
        if re.fullmatch("[0-9a-f]{40}", revision) and commit.name != revision:
            raise UserError("hub_damaged", f"{url} is another commit: {commit.name}")
        url, body = f"{self._api}/paths-info/{commit.name}", {"paths": _NAMES, "expand": False}
        files = await self._asked(list[_File], "POST", url, json=body)
        return commit, {file.path: file for file in files if file.path in _NAMES}

    async def _sent(self, name: str, content: bytes) -> dict[str, Any]:
        """Return a file's line of a commit; a large file is uploaded first."""
        size, url = len(content), f"{self._api}/preupload/{_BRANCH}"
        about = {"path": name, "size": size, "sample": base64.b64encode(content[:512]).decode()}
        answer = await self._asked(_Upload, "POST", url, json={"files": [about]})
        # The storage of large files refuses empty ones.
        if size and (size > REGULAR or answer.mode == "lfs"):
            key, value = "lfsFile", {"algo": "sha256", **await self._stored(content)}
        else:
            text = base64.b64encode(content).decode()
            key, value = "file", {"encoding": "base64", "content": text}
        return {"key": key, "value": {"path": name, **value}}

    async def _stored(self, content: bytes) -> dict[str, Any]:
        """Upload a file to the hub's storage of large files, unless it is there."""
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        body = {"operation": "upload", "transfers": ["basic"], "objects": [large]}
        kind = dict.fromkeys(("Accept", "Content-Type"), "application/vnd.git-lfs+json")
        url = f"{self.page}.git/info/lfs/objects/batch"
        answer = await self._asked(_Upload, "POST", url, content=json.dumps(body), headers=kind)
        if upload := answer.actions.get("upload"):
            await self._ask("PUT", upload.href, content=content, headers=upload.header)
        if verify := answer.actions.get("verify"):
            await self._ask("POST", verify.href, json=large, headers=verify.header)
        return large

    async def _asked(self, model: type[T], method: str, url: str, **request: Any) -> T:
        answer = await self._ask(method, url, **request)
        with refused_at(url, "hub_damaged"):
            return TypeAdapter(model).validate_json(answer)

    async def _ask(self, method: str, url: str, most: int = ANSWER, **request: Any) -> bytes:
        """Return the body of an answer, of at most this many bytes."""
        # Large files are kept by another server, which must not get the token.
        token = self._token if url.startswith(f"{self._url}/") else None
        body, until = bytearray(), min(self._until, time.monotonic() + _REQUEST)
        try:
            # httpx sends a body in one write, which `until` bounds.
            options = protocol.options(url, token) | {"timeout": Timeout(_SILENCE, write=None)}
            options |= {"event_hooks": {"request": [self._refuse_plain]}, "follow_redirects": True}
            # No compression: a small answer could unpack to any size.
            options["headers"]["Accept-Encoding"] = "identity"
            client = httpx.AsyncClient(**options)
            async with timeout_at(until), client, client.stream(method, url, **request) as answer:
                if answer.is_error:
                    raise _refusal(url, answer)
                async for piece in answer.aiter_raw():
                    body += piece
                    if len(body) > most:
                        raise UserError("hub_damaged", f"{url} sends more than it should")
        # Errors of hostile addresses and headers; for a wrong Content-Length, h11's own error.
        except (ValueError, httpx.InvalidURL, UnsupportedProtocol, LocalProtocolError) as error:
            raise UserError("hub_damaged", f"{url}: {error}") from error
        except (TimeoutError, httpx.HTTPError) as error:
            raise InfrastructureError("hub_unreachable", f"{url}: {error!r}") from error
        return bytes(body)

    async def _refuse_plain(self, request: httpx.Request) -> None:
        # Called for redirects, too: a hub may not send requests to this machine's network.
        if self._url.startswith("https:") and request.url.scheme != "https":
            raise UnsupportedProtocol(f"the hub refers to {request.url}")


def _prepared(folder: Path) -> dict[str, bytes]:
    """Write a folder's card and manifest; return the files that are pushed."""
    _own_files(folder)
    dataset.load(folder)
    card.write(folder)
    # A manifest's last digits differ between machines: one that still holds is not rewritten.
    right = (folder / manifest.NAME).exists() and not manifest.differences(folder)
    if (folder / attempt_files.NAME).exists() and not right:
        manifest.write(folder)
    return _own_files(folder)


def _own_files(folder: Path) -> dict[str, bytes]:
    ours = {}
    for path in (folder / name for name in _NAMES):
        if path.is_file() and not path.is_symlink():
            ours[path.name] = read_bounded(path, FILE)
        # Through a link, any file of the user would be published, or overwritten.
        elif os.path.lexists(path):
            raise UserError("unsafe_file", f"{path} is not a regular file")
    return ours


def _problems(folder: Path) -> list[str]:
    dataset.load(folder)
    return manifest.differences(folder) if (folder / attempt_files.NAME).exists() else []


def _refusal(url: str, answer: httpx.Response) -> Exception:
    words = answer.headers.get("X-Error-Message", answer.reason_phrase)[:500]
    message = f"{url} answered {answer.status_code}: {words}"
    if answer.status_code == 404:
        return NotFound("no_repository", message)
    if answer.is_client_error:
        return UserError("hub_refused", f"{message} (HF_TOKEN is the token)")
    return InfrastructureError("hub_refused", message)
