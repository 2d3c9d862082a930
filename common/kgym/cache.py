"""A cache of folders on the local disk, shared by the processes of a host.

An entry is made in a temporary folder and renamed into place, so it is whole
or absent. Its fingerprint (every file's path, size and time) is checked when it
is taken, if that was not done a short while ago; an entry that was damaged is made again.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from kgym import sandbox

Make = Callable[[Path], Awaitable[None]]
_POLL_SECONDS = 0.05
_TRUST_SECONDS = 600.0
"""How long a check counts: one of a kernel source takes a second, a patched build ten."""


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock file `path`, alone on this host; wait for it without blocking the loop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_SECONDS)
        yield


class FolderCache:
    """Entries `root/KEY`, each a folder that `make` filled once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._checked: dict[str, float] = {}

    async def get(self, key: str, make: Make, *, fresh: bool = False) -> tuple[Path, bool]:
        """Return the entry's folder, and whether it was there; others that want it wait."""
        folder = self._root / key
        async with locked(self._root / f".{key}.lock"):
            if not fresh and await self._intact(key):
                return folder, True
            for leftover in self._root.glob(f".{key}.part-*"):
                await asyncio.to_thread(sandbox.remove, leftover)
            part = self._root / f".{key}.part-{uuid.uuid4().hex}"
            part.mkdir()
            try:
                await make(part)
                (part / ".fingerprint").write_text(await asyncio.to_thread(_fingerprint, part))
                await asyncio.to_thread(sandbox.remove, folder)
                part.rename(folder)
            finally:
                await asyncio.to_thread(sandbox.remove, part)
            self._checked[key] = time.monotonic()
            return folder, False

    async def _intact(self, key: str) -> bool:
        folder, now = self._root / key, time.monotonic()
        if folder.exists() and now < self._checked.get(key, -_TRUST_SECONDS) + _TRUST_SECONDS:
            return True
        intact = await asyncio.to_thread(_intact, folder)
        if intact:
            self._checked[key] = now
        return intact


def _intact(folder: Path) -> bool:
    try:
        return (folder / ".fingerprint").read_text() == _fingerprint(folder)
    except OSError:
        return False


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    todo = [os.fspath(folder)]
    while todo:
        parent = todo.pop()
        with os.scandir(parent) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name == ".fingerprint" and parent == os.fspath(folder):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                    continue
                stat = entry.stat(follow_symlinks=False)
                name = os.path.relpath(entry.path, folder)
                digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
