"""Artifact storage: files under keys, which appear whole or not at all."""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from kgym.errors import InfrastructureError
from kgym.jobs import Artifact

CHUNK = 1 << 20
_KEY = re.compile(r"^[\w][\w.+-]*(/[\w][\w.+-]*)*$")


class Storage(Protocol):
    """Where artifacts are kept. Keys are relative paths of plain names."""

    async def put(self, key: str, path: Path) -> Artifact:
        """Store the file at `path` under `key`, replacing what was there; return its record."""
        ...

    async def get(self, key: str, path: Path) -> None:
        """Write the file stored under `key` to `path`."""
        ...

    def read(self, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yield the bytes [start, stop) of the file stored under `key`."""
        ...

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """Return the bytes stored below each folder that is `depth` names below `prefix`.

        Includes what was left of a `put` that was killed.
        """
        ...

    async def remove(self, prefix: str) -> None:
        """Remove all that is stored below this folder; it may be gone already."""
        ...


class LocalStorage:
    """Storage in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    async def put(self, key: str, path: Path) -> Artifact:
        """Copy to a temporary name, flush to the disk, then rename into place."""
        return await asyncio.to_thread(self._put, key, path)

    async def get(self, key: str, path: Path) -> None:
        """Copy the stored file to `path`."""
        source = self._stored(key)
        await asyncio.to_thread(shutil.copyfile, source, path)

    async def read(self, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """Read in chunks, off the event loop."""
        with await asyncio.to_thread(self._stored(key).open, "rb") as file:
            file.seek(start)
            while start < stop:
                chunk = await asyncio.to_thread(file.read, min(CHUNK, stop - start))
                if not chunk:
                    raise InfrastructureError("artifact_truncated", f"{key} is shorter than stored")
                start += len(chunk)
                yield chunk

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """Walk the folder."""
        return await asyncio.to_thread(self._sizes, prefix, depth)

    async def remove(self, prefix: str) -> None:
        """Remove the folder, then those above that are empty."""
        await asyncio.to_thread(self._remove, self._path(prefix))

    def _sizes(self, prefix: str, depth: int) -> dict[str, int]:
        folders = self._path(prefix).glob("/".join("*" * depth))
        return {
            folder.relative_to(self.root).as_posix(): sum(
                path.stat().st_size for path in folder.rglob("*") if path.is_file()
            )
            for folder in folders
            if folder.is_dir()
        }

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            for parent in folder.parents:
                if parent == self.root:
                    break
                parent.rmdir()

    def _put(self, key: str, path: Path) -> Artifact:
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as source, part.open("wb") as sink:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    sink.write(chunk)
                sink.flush()
                os.fsync(sink.fileno())
            part.replace(target)
        except OSError as error:
            raise InfrastructureError("storage_failed", f"cannot store {key}: {error}") from error
        finally:
            part.unlink(missing_ok=True)
        return Artifact(name=target.name, size=size, sha256=digest.hexdigest(), key=key)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InfrastructureError("bad_key", f"not a storage key: {key!r}")
        return self.root / key

    def _stored(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise InfrastructureError("artifact_missing", f"storage holds no {key}", key=key)
        return path
