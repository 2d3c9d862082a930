"""Artifact storage: files under keys, written atomically.

A file similar to a base, such as a patched kernel and the unpatched one, is stored as its
difference (`kgym.transport.file_delta`). Its key then names the base: KEY~SHA256, so the key is
all that a reader needs. A base is a file under its own SHA-256, written once, and kept while any
key names it. References are found by listing keys, which an object store can do as well; there, a
base is removed on the condition that nobody has touched it meanwhile.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Protocol

from kgym.api.jobs import Artifact
from kgym.errors import InfrastructureError

CHUNK = 1 << 20
_KEY = re.compile(r"^[\w][\w.+-]*(/[\w][\w.+-]*)*(~[0-9a-f]{64})?$")
BASES = "bases"
# Longest name of a file that may become a delta: file systems allow 255 bytes, and the name of the
# base and a temporary suffix are appended.
LONGEST_NAME = 128
# Minimum bytes of a file for which a delta is tried.
LEAST = 1 << 12
_ALONE_SECONDS = 20.0
# Removing bases lists all files: a million of them take a minute.
LOCK_SECONDS = 300.0


class ArtifactMissing(InfrastructureError):
    """Nothing is stored under this key."""


class BasesHeld(InfrastructureError):
    """Another process holds the lock of the bases longer than any operation takes."""


class Storage(Protocol):
    """A store of artifacts. Keys are relative paths of plain names."""

    async def put(
        self, key: str, path: Path, *, move: bool = False, base: str | None = None
    ) -> Artifact:
        """Store the file under `key`, replacing any other; return its record.

        With `move`, the file may be moved instead of copied. With `base`, it may be stored as its
        difference from that base; the record has the key.
        """

    async def copy(self, source: str, key: str) -> str:
        """Store a copy of `source` under `key`; return the key, which may name a base."""

    async def put_base(self, path: Path) -> str:
        """Store the file as a base; return its name."""

    async def has_base(self, base: str) -> bool:
        """Return whether this base is stored and undamaged; keep it for a day."""

    async def remove_bases(self, age: float) -> dict[str, int]:
        """Remove the bases that no key names; return their names and bytes.

        Bases that `has_base` was called for within `age` seconds stay.
        """

    async def get(self, key: str, path: Path) -> None:
        """Write the file stored under `key` to `path`."""

    def read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Yield the bytes [start, stop) of the file stored under `key`.

        Raises InfrastructureError `artifact_truncated` after the last byte of a shorter file.
        """

    async def link(self, key: str) -> str | None:
        """Return a temporary public URL of the file; None if this storage makes no URLs."""

    async def room(self) -> tuple[int, int] | None:
        """Return the free and the total bytes; None if the store is unbounded."""

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """Return the bytes stored below each folder that is `depth` names below `prefix`.

        An empty prefix is the root. Leftovers of killed `put`s are included.
        """

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """Return, for the same folders, the seconds since the last file was stored in each."""

    async def remove(self, prefix: str) -> None:
        """Remove all files below this folder; do nothing if there are none."""


class LocalStorage:
    """Storage in a local folder."""

    def __init__(self, root: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.root = root
        self._lock_seconds = lock_seconds
        self._seen: dict[str, tuple[int, int, int]] = {}
        root.mkdir(parents=True, exist_ok=True)

    async def put(
        self, key: str, path: Path, *, move: bool = False, base: str | None = None
    ) -> Artifact:
        """Copy or move to a temporary name, flush to the disk, then rename into place."""
        return await asyncio.to_thread(self._put_like, key, path, move, base)

    async def copy(self, source: str, key: str) -> str:
        """Make a hard link, since stored files never change."""
        key += "".join(source.partition("~")[1:])
        await asyncio.to_thread(self._copy, self._stored(source), self._path(key))
        return key

    async def put_base(self, path: Path) -> str:
        """Copy the file, unless the base exists."""
        return await asyncio.to_thread(self._put_base, path)

    async def has_base(self, base: str) -> bool:
        """Check the base, and set its folder's time, from which `remove_bases` reads its age."""
        return await asyncio.to_thread(self._touch, base)

    async def remove_bases(self, age: float) -> dict[str, int]:
        """Remove them while no delta is being stored; none if that never happens."""
        return await asyncio.to_thread(self._remove_bases, age)

    async def get(self, key: str, path: Path) -> None:
        """Copy the stored file to `path`."""
        await asyncio.to_thread(self._get, key, path)

    async def read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Read in chunks, in a thread."""
        pieces = await asyncio.to_thread(self._pieces, key, start)
        try:
            while start < stop:
                chunk = await asyncio.to_thread(next, pieces, b"")
                if not chunk:
                    raise InfrastructureError("artifact_truncated", f"{key} is shorter than stored")
                yield chunk[: stop - start]
                start += len(chunk)
        finally:
            await asyncio.to_thread(pieces.close)

    async def link(self, key: str) -> str | None:
        """Return None: the disk is not public."""
        return None

    async def room(self) -> tuple[int, int] | None:
        """Return the disk's free and total bytes."""
        usage = await asyncio.to_thread(shutil.disk_usage, self.root)
        return usage.free, usage.total

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """Walk the folder tree."""
        return await asyncio.to_thread(self._sizes, prefix, depth)

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """Walk the folder tree."""
        return await asyncio.to_thread(self._ages, prefix, depth)

    async def remove(self, prefix: str) -> None:
        """Remove the folder, then its empty parents."""
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
        top = self._path(prefix) if prefix else self.root
        for folder in top.glob("/".join("*" * depth)):
            if folder.is_dir():
                files = [path.stat() for path in folder.rglob("*") if path.is_file()]
                yield folder.relative_to(self.root).as_posix(), files

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            for parent in folder.parents:
                if parent == self.root:
                    break
                parent.rmdir()

    def _put_like(self, key: str, path: Path, move: bool, base: str | None) -> Artifact:
        name = key.rpartition("/")[2]
        if base is None or len(name) > LONGEST_NAME or not self._worth(key, path):
            return self._put(key, path, move)
        with self._bases_held():
            kept = self._put_delta(key, path, base) if self._touch(base) else None
        if kept is None:
            return self._put(key, path, move)
        if move:
            path.unlink(missing_ok=True)
        return kept

    def _worth(self, key: str, path: Path) -> bool:
        try:
            return path.stat().st_size >= LEAST
        except OSError as error:
            raise failed(key, error) from error

    def _put_delta(self, key: str, path: Path, base: str) -> Artifact | None:
        from kgym.transport import file_delta  # noqa: PLC0415 - numpy's import takes 0.1 s

        sha256, size = sha256_of(path), path.stat().st_size
        named = f"{key}~{base}"
        with self._replacing(named) as (part, target):
            if sha256 == base:
                part.touch()  # the base itself
            elif not file_delta.write(path, sha256, self._base(base), part):
                return None
            part.replace(target)
        name = key.rpartition("/")[2]
        return Artifact(name=name, size=size, sha256=sha256, key=named)

    def _put_base(self, path: Path) -> str:
        base = sha256_of(path)
        with self._bases_held():
            if not self._touch(base):
                self._put(f"{BASES}/{base}/file", path, move=False)
        return base

    def _base(self, base: str) -> Path:
        return self.root / BASES / base / "file"

    def _touch(self, base: str) -> bool:
        """Return whether a base is undamaged, and set the time of its last use."""
        try:
            os.utime(self._base(base).parent)
            return self._whole(base)
        except OSError:
            return False

    def _whole(self, base: str) -> bool:
        """Return whether the base has the SHA-256 of its name; read it only if it changed."""
        path = self._base(base)
        status = path.stat()
        looks = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen.get(base) != looks:
            if sha256_of(path) != base:
                return False
            self._seen[base] = looks
        return True

    @contextlib.contextmanager
    def _bases_held(self, *, alone: bool = False) -> Iterator[None]:
        """Lock the bases: shared, so that none is removed; or `alone`, so that none is used."""
        path = self.root / ".bases.lock"
        with path.open("a") as file:
            until = time.monotonic() + (_ALONE_SECONDS if alone else self._lock_seconds)
            while True:
                try:
                    fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise BasesHeld(
                            "storage_busy",
                            f"{path} is locked by another process for too long;"
                            f" `fuser -v {path}` names it: end it, and restart the job",
                        ) from error
                    time.sleep(0.05)
            yield

    def _unused(self, age: float) -> dict[str, int]:
        old = {}
        for folder in (self.root / BASES).glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if folder.stat().st_mtime < time.time() - age:
                    old[folder.name] = sum(path.stat().st_size for path in folder.iterdir())
        if old:
            for _, _, names in os.walk(self.root):
                for name in names:
                    old.pop(name.rpartition("~")[2], None)
        return old

    def _remove_bases(self, age: float) -> dict[str, int]:
        try:
            with self._bases_held(alone=True):
                unused = self._unused(age)
                for base in unused:
                    shutil.rmtree(self._base(base).parent, ignore_errors=True)
        except BasesHeld:
            return {}
        return unused

    def _get(self, key: str, path: Path) -> None:
        stored = self._stored(key)
        if "~" not in key:
            shutil.copyfile(stored, path)
            return
        with path.open("wb") as sink:
            for piece in self._pieces(key, 0):
                sink.write(piece)

    def _pieces(self, key: str, start: int) -> Generator[bytes]:
        """Return a generator of the file's content from a byte on."""
        stored, base = self._stored(key), key.rpartition("~")[2]
        if "~" not in key:
            return _from(stored, start)
        try:
            whole = self._whole(base)
        except OSError as error:
            raise missing(f"{BASES}/{base}") from error
        if not whole:
            raise InfrastructureError("artifact_damaged", f"the base of {key} is damaged")
        return undone(stored, self._base(base), start)

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
            part.replace(target)
        return Artifact(name=target.name, size=size, sha256=sha256, key=key)

    def _copy(self, source: Path, target: Path) -> None:
        key = target.relative_to(self.root).as_posix()
        with self._bases_held(), self._replacing(key) as (part, _):
            if "~" in key and not self._touch(key.rpartition("~")[2]):
                raise missing(key)  # its base is damaged
            try:
                os.link(source, part)
            except FileNotFoundError as error:
                raise missing(key) from error
            except OSError:  # a file system without hard links, or too many links
                _copied(source, part)
            part.replace(target)

    @contextlib.contextmanager
    def _replacing(self, key: str) -> Iterator[tuple[Path, Path]]:
        """Yield a temporary path and the final one, to which the complete file is renamed."""
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            yield part, target
        except OSError as error:
            raise failed(key, error) from error
        finally:
            part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _stored(self, key: str) -> Path:
        path = self._path(key)
        # All workers may write here: their symbolic links must not reveal files of this process.
        if not path.is_file() or path.resolve() != self.root.resolve() / key:
            raise missing(key)
        return path


def checked_key(key: str) -> str:
    """Return the key; raise InfrastructureError `bad_key` if it is invalid."""
    if not _KEY.fullmatch(key):
        raise InfrastructureError("bad_key", f"not a storage key: {key!r}")
    return key


def missing(key: str) -> ArtifactMissing:
    """Return the error of a key without a file."""
    return ArtifactMissing("artifact_missing", f"storage has no {key}", key=key)


def failed(key: str, error: OSError) -> InfrastructureError:
    """Return the error of a file that cannot be read or stored."""
    return InfrastructureError("storage_failed", f"cannot store {key}: {error}")


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from(path: Path, start: int) -> Generator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield chunk


def undone(delta: Path, base: Path, start: int) -> Generator[bytes]:
    """Yield a file stored as `delta`, from a byte on; an empty delta stands for the base."""
    from kgym.transport import file_delta  # noqa: PLC0415 - as in `_put_delta`

    if not delta.stat().st_size:
        yield from _from(base, start)
        return
    at = 0
    for piece in file_delta.read(delta, base):
        if at + len(piece) > start:
            yield piece[max(start - at, 0) :]
        at += len(piece)


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
