"""Artifact storage: files under keys, which appear whole or not at all."""

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

from kgym.api.jobs import Artifact
from kgym.errors import InfrastructureError

CHUNK = 1 << 20
_KEY = re.compile(r"^[\w][\w.+-]*(/[\w][\w.+-]*)*$")


class Storage(Protocol):
    """Where artifacts are kept. Keys are relative paths of plain names."""

    async def put(self, key: str, path: Path, *, move: bool = False) -> Artifact:
        """Store the file at `path` under `key`, replacing what was there; return its record.

        With `move`, the caller has no use for the file any more: it need not be copied.
        """
        ...

    async def copy(self, source: str, key: str) -> None:
        """Store what is stored under `source` under `key` as well."""
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

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """Return, for the same folders, the seconds since something was last stored in them."""
        ...

    async def remove(self, prefix: str) -> None:
        """Remove all that is stored below this folder; it may be gone already."""
        ...


class LocalStorage:
    """Storage in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    async def put(self, key: str, path: Path, *, move: bool = False) -> Artifact:
        """Copy or move to a temporary name, flush to the disk, then rename into place."""
        return await asyncio.to_thread(self._put, key, path, move)

    async def copy(self, source: str, key: str) -> None:
        """Link: what is stored never changes."""
        await asyncio.to_thread(self._copy, self._stored(source), self._path(key))

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

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """Walk the folder."""
        return await asyncio.to_thread(self._ages, prefix, depth)

    async def remove(self, prefix: str) -> None:
        """Remove the folder, then those above that are empty."""
        await asyncio.to_thread(self._remove, self._path(prefix))

    def _sizes(self, prefix: str, depth: int) -> dict[str, int]:
        return {
            name: sum(status.st_size for status in files)
            for name, files in self._folders(prefix, depth)
        }

    def _ages(self, prefix: str, depth: int) -> dict[str, float]:
        now = time.time()
        return {
            name: now - max(status.st_mtime for status in files)
            for name, files in self._folders(prefix, depth)
            if files
        }

    def _folders(self, prefix: str, depth: int) -> Iterator[tuple[str, list[os.stat_result]]]:
        for folder in self._path(prefix).glob("/".join("*" * depth)):
            if folder.is_dir():
                files = [path.stat() for path in folder.rglob("*") if path.is_file()]
                yield folder.relative_to(self.root).as_posix(), files

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            for parent in folder.parents:
                if parent == self.root:
                    break
                parent.rmdir()

    def _put(self, key: str, path: Path, move: bool) -> Artifact:
        with self._replacing(key) as (part, target):
            if move:
                _moved(path, part)
                with part.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                    os.fsync(file.fileno())
            else:
                sha256 = _copied(path, part)
            size = part.stat().st_size
        return Artifact(name=target.name, size=size, sha256=sha256, key=key)

    def _copy(self, source: Path, target: Path) -> None:
        key = target.relative_to(self.root).as_posix()
        with self._replacing(key) as (part, _):
            try:
                os.link(source, part)
            except FileNotFoundError as error:
                raise _missing(key) from error
            except OSError:  # a file system without links, or this file has too many
                _copied(source, part)

    @contextlib.contextmanager
    def _replacing(self, key: str) -> Iterator[tuple[Path, Path]]:
        """Give a temporary name and the final one; rename the first to the second at the end."""
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            yield part, target
            part.replace(target)
        except OSError as error:
            raise InfrastructureError("storage_failed", f"cannot store {key}: {error}") from error
        finally:
            part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InfrastructureError("bad_key", f"not a storage key: {key!r}")
        return self.root / key

    def _stored(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise _missing(key)
        return path


def _missing(key: str) -> InfrastructureError:
    return InfrastructureError("artifact_missing", f"storage holds no {key}", key=key)


def _copied(source: Path, target: Path) -> str:
    """Copy a file and flush it to the disk; return its SHA-256."""
    digest = hashlib.sha256()
    with source.open("rb") as file, target.open("wb") as sink:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            sink.write(chunk)
        sink.flush()
        os.fsync(sink.fileno())
    return digest.hexdigest()


def _moved(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
        source.unlink()
