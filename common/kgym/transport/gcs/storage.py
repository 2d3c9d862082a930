"""Artifact storage in a bucket, which many hosts share."""

import asyncio
import contextlib
import functools
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import ParamSpec, TypeVar

from kgym.api.jobs import Artifact
from kgym.errors import InfrastructureError
from kgym.host.folder_cache import FolderCache, Make
from kgym.transport.artifact_storage import (
    BASES,
    LEAST,
    LONGEST_NAME,
    ArtifactMissing,
    checked_key,
    failed,
    missing,
    sha256_of,
    undone,
)
from kgym.transport.gcs.bases import Bases
from kgym.transport.gcs.connection import Connection, connect
from kgym.transport.gcs.objects import ERRORS, PATIENCE_SECONDS, Objects, StoredObject, translated

# Concurrent operations, each in a thread, as Google's library is blocking.
CALLS = 32
# Maximum size of this host's cache of bases.
CACHE_BYTES = 20 << 30
# How often a download is retried if the file is replaced after its look-up.
_REPLACED = 20
# Bytes per request of a reader.
_PIECE = 4 << 20

P = ParamSpec("P")
T = TypeVar("T")


class GcsStorage:
    """Storage below `prefix` in a bucket; the local folder `cache` may be deleted any time."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        cache: Path,
        connection: Connection | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._connection = connection or connect(CALLS)
        self._objects = Objects(self._connection, bucket, patience)
        self._prefix = f"{prefix}/" if prefix else ""
        self._cache = cache
        self._held = FolderCache(cache / "bases")
        self._bases = Bases(self._objects, self._prefix)
        self._threads = ThreadPoolExecutor(CALLS, "gcs")

    def close(self) -> None:
        """Wait for calls under way, then close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._connection.close()

    @property
    def url(self) -> str:
        """The store's base URL."""
        return self._connection.url

    def address(self, key: str) -> str:
        """Return the URL of a key's object for other services of Google."""
        return f"https://storage.googleapis.com/{self._objects.bucket}/{self._prefix}{key}"

    async def put(
        self, key: str, path: Path, *, move: bool = False, base: str | None = None
    ) -> Artifact:
        """Upload the file; the store creates the object once it has verified the checksum."""
        name = checked_key(key).rpartition("/")[2]
        artifact = None
        if base is not None and len(name) <= LONGEST_NAME:
            artifact = await self._put_delta(key, path, base)
        if artifact is None:
            sha256, size = await self._run(self._put, key, path)
            artifact = Artifact(name=name, size=size, sha256=sha256, key=key)
        if move:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return artifact

    async def copy(self, source: str, key: str) -> str:
        """Copy within the store."""
        key = checked_key(key + "".join(checked_key(source).partition("~")[1:]))
        await self._run(self._objects.copy, self._name(source), self._name(key))
        if "~" in key and not await self._run(self._bases.keep, key.rpartition("~")[2]):
            await self._run(self._delete, key)
            raise missing(key)  # its base is gone
        return key

    async def put_base(self, path: Path) -> str:
        """Upload the base unless it exists; cache it on this host for later deltas."""
        base = await asyncio.to_thread(sha256_of, path)
        if not await self.has_base(base):
            await self._run(self._put, f"{BASES}/{base}/file", path)

        async def make(folder: Path) -> None:
            await asyncio.to_thread(shutil.copyfile, path, folder / "file")

        with ExitStack() as held:
            await self._cached(base, make, held)
        return base

    async def has_base(self, base: str) -> bool:
        """Look the base up, and record its use."""
        return await self._run(self._bases.touch, base)

    async def remove_bases(self, age: float) -> dict[str, int]:
        """Remove the unused bases, except those used meanwhile."""
        gone = await self._run(self._bases.remove_unused, age)
        return {base: stored.size for base, stored in gone.items()}

    async def get(self, key: str, path: Path) -> None:
        """Download to a temporary name, verify the checksums, then rename into place."""
        if "~" not in checked_key(key):
            await self._run(self._get, key, path)
            return
        with ExitStack() as held:
            delta, base = await self._both(key, held)
            await self._run(_write, undone(delta, base, 0), path)

    async def read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Download a range in pieces."""
        if "~" in checked_key(key):
            async with contextlib.aclosing(self._read_delta(key, start, stop)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        stored = await self._run(self._look, key)
        end = min(stop, stored.size)
        for at in range(start, end, _PIECE):
            yield await self._run(self._objects.part, stored, at, min(at + _PIECE, end))
        if end < stop:  # raised last, as by `LocalStorage`: callers may use the bytes so far
            raise InfrastructureError("artifact_truncated", f"{key} is shorter than stored")

    async def _read_delta(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
        with ExitStack() as held:
            delta, base = await self._both(key, held)
            pieces = undone(delta, base, start)
            while start < stop and (chunk := await asyncio.to_thread(next, pieces, b"")):
                yield chunk[: stop - start]
                start += len(chunk)
        if start < stop:
            raise InfrastructureError("artifact_truncated", f"{key} is shorter than stored")

    async def link(self, key: str) -> str | None:
        """Sign a URL, if the credentials can and the object is not a delta."""
        if not self._connection.signs or "~" in checked_key(key):
            return None
        return await self._run(self._link, key)

    async def room(self) -> tuple[int, int] | None:
        """Return None: a bucket is unbounded."""
        return None

    async def sizes(self, prefix: str, depth: int) -> dict[str, int]:
        """List all objects below the prefix."""

        def summed() -> dict[str, int]:
            sizes: dict[str, int] = {}
            for folder, stored in self._folders(prefix, depth):
                sizes[folder] = sizes.get(folder, 0) + stored.size
            return sizes

        return await self._run(summed)

    async def ages(self, prefix: str, depth: int) -> dict[str, float]:
        """List all objects below the prefix."""

        def newest() -> dict[str, float]:
            ages: dict[str, float] = {}
            now = time.time()
            for folder, stored in self._folders(prefix, depth):
                age = now - stored.updated.timestamp()
                ages[folder] = min(age, ages.get(folder, age))
            return ages

        return await self._run(newest)

    async def remove(self, prefix: str) -> None:
        """List and delete the objects below; those replaced meanwhile stay."""
        below = await self._run(self._below, checked_key(prefix))
        for at in range(0, len(below), CALLS):
            batch = below[at : at + CALLS]
            await asyncio.gather(*(self._run(self._objects.delete, stored) for stored in batch))

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in a thread. A started call cannot be cancelled."""
        call = functools.partial(function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except ERRORS as error:
            raise translated(error) from error

    # --- blocking calls ----------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return self._prefix + key

    def _look(self, key: str) -> StoredObject:
        stored = self._objects.look(self._name(key))
        if stored is None:
            raise missing(key)
        return stored

    def _put(self, key: str, path: Path) -> tuple[str, int]:
        try:
            return self._objects.put(self._name(key), path)
        except OSError as error:
            raise failed(key, error) from error

    def _delete(self, key: str) -> None:
        stored = self._objects.look(self._name(key))
        if stored is not None:
            self._objects.delete(stored)

    def _get(self, key: str, path: Path) -> None:
        for _ in range(_REPLACED):
            stored = self._look(key)
            with contextlib.suppress(ArtifactMissing):  # replaced since
                self._objects.get(stored, path)
                return
        raise InfrastructureError("storage_busy", f"other hosts replace {key} again and again")

    def _link(self, key: str) -> str:
        return self._objects.link(self._look(key))

    def _below(self, prefix: str) -> list[StoredObject]:
        return list(self._objects.each(self._name(f"{prefix}/")))

    def _folders(self, prefix: str, depth: int) -> Iterator[tuple[str, StoredObject]]:
        """Yield each object below, with its folder. There may be millions."""
        below = f"{checked_key(prefix)}/" if prefix else ""
        count = below.count("/") + depth
        for stored in self._objects.each(self._name(below)):
            key = stored.name.removeprefix(self._prefix).split("/")
            if len(key) > count:
                yield "/".join(key[:count]), stored

    # --- deltas ------------------------------------------------------------------------------

    async def _put_delta(self, key: str, path: Path, base: str) -> Artifact | None:
        """Store the file as its difference from the base; return None if that is not possible."""
        from kgym.transport import file_delta  # noqa: PLC0415 - numpy's import takes 0.1 s

        try:
            size = (await asyncio.to_thread(path.stat)).st_size
        except OSError as error:
            raise failed(key, error) from error
        if size < LEAST or not await self.has_base(base):
            return None
        sha256 = await asyncio.to_thread(sha256_of, path)
        named = f"{key}~{base}"
        with ExitStack() as held:
            delta = Path(held.enter_context(tempfile.TemporaryDirectory())) / "delta"
            if sha256 == base:
                delta.touch()  # the base itself
            else:
                like = await self._base(base, held)
                if not await asyncio.to_thread(file_delta.write, path, sha256, like, delta):
                    return None
            await self._run(self._put, named, delta)
        if not await self._run(self._bases.keep, base):
            await self._run(self._delete, named)
            return None
        return Artifact(name=key.rpartition("/")[2], size=size, sha256=sha256, key=named)

    async def _both(self, key: str, held: ExitStack) -> tuple[Path, Path]:
        """Fetch a delta and its base."""
        delta = Path(held.enter_context(tempfile.TemporaryDirectory())) / "delta"
        await self._run(self._get, key, delta)
        return delta, await self._base(key.rpartition("~")[2], held)

    async def _base(self, base: str, held: ExitStack) -> Path:
        async def make(folder: Path) -> None:
            await self._run(self._bases.fetch, base, folder / "file")

        return await self._cached(base, make, held)

    async def _cached(self, base: str, make: Make, held: ExitStack) -> Path:
        folder, there = await self._held.get(base, make, held=held)
        if not there:
            await asyncio.to_thread(self._held.trim, CACHE_BYTES)
        return folder / "file"


def _write(pieces: Iterable[bytes], path: Path) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with part.open("wb") as sink:
            for data in pieces:
                sink.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
