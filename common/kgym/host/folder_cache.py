"""A cache of folders on the local disk, shared by the processes of a host.

An entry is made in a temporary folder and renamed into place, so it is complete or absent. Its
fingerprint (path, size and time of every file) is checked when it is taken, unless it was checked
recently; a damaged entry is made again.

Beside an entry KEY lie `.KEY.lock`, held while the entry is made, checked or removed, and
`.KEY.use`, locked shared by all users; the time of `.KEY.use` is that of the last use.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.host import sandbox

Make = Callable[[Path], Awaitable[None]]
# Returns whether an entry's content is valid: quickly, or with True thoroughly, at any cost.
Check = Callable[[Path, bool], bool]
_POLL_SECONDS = 0.05
# Time for which a checked fingerprint is trusted: the check of a kernel source takes a second, of
# a patched build ten.
_TRUST_SECONDS = 600.0


@contextlib.asynccontextmanager
async def locked(path: Path, *, wait: bool = True) -> AsyncIterator[None]:
    """Context manager: hold an exclusive lock on the file `path` without blocking the event loop.

    Without `wait`, raises InfrastructureError `busy` if it is locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if not wait:
                    message = f"{path} is locked: another process makes this entry"
                    raise InfrastructureError("busy", message) from error
                await asyncio.sleep(_POLL_SECONDS)
        yield


class FolderCache:
    """Entries `root/KEY`, each a folder that `make` filled once.

    `check` validates what the fingerprint does not cover.
    """

    def __init__(self, root: Path, check: Check = lambda _folder, _thorough: True) -> None:
        self._root = root
        self._check = check
        self._checked: dict[str, float] = {}
        self._doubted: set[str] = set()

    async def get(
        self,
        key: str,
        make: Make,
        *,
        fresh: bool = False,
        held: ExitStack | None = None,
        wait: bool = True,
    ) -> tuple[Path, bool]:
        """Return the entry's folder, and whether it existed; make it if it did not.

        It is not removed until `held` is closed. Other processes that need it wait meanwhile;
        without `wait`, they raise InfrastructureError `busy`.
        """
        folder = self._root / key
        async with locked(self._root / f".{key}.lock", wait=wait):
            if held is not None:
                held.enter_context(_used(self._root / f".{key}.use"))
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
            self._doubted.discard(key)
            return folder, False

    @contextlib.asynccontextmanager
    async def using(self, key: str, begin: Callable[[Path], None]) -> AsyncIterator[Path]:
        """Context manager: a folder that its users fill themselves; not removed meanwhile.

        `begin` is called with the new folder if there is none.
        """
        folder = self._root / key
        with ExitStack() as held:
            async with locked(self._root / f".{key}.lock"):
                held.enter_context(_used(self._root / f".{key}.use"))
                if not folder.exists():
                    part = self._root / f".{key}.part-{uuid.uuid4().hex}"
                    part.mkdir()
                    begin(part)
                    part.rename(folder)
            yield folder

    def doubt(self, key: str) -> None:
        """Request a thorough check when the entry is next taken, as reading it failed."""
        self._checked.pop(key, None)
        self._doubted.add(key)

    def trim(self, budget: int) -> list[str]:
        """Remove least recently used idle entries until `budget` bytes are kept; return keys."""
        locks = self._root.glob(".*.lock")
        cached = [_entry(self._root, lock.name[1 : -len(".lock")]) for lock in locks]
        total = sum(entry.size for entry in cached)
        removed = []
        for entry in sorted(cached, key=lambda entry: entry.used_at):
            if total > budget and entry.size and entry.remove():
                total -= entry.size
                removed.append(entry.key)
        return removed

    def remove(self, key: str) -> bool:
        """Remove an entry; return False if it does not exist or is in use."""
        return (self._root / key).is_dir() and _entry(self._root, key).remove()

    def sizes(self) -> dict[str, int]:
        """Return the bytes on the disk of each complete entry, by key."""
        if not self._root.is_dir():
            return {}
        complete = (path for path in self._root.iterdir() if not path.name.startswith("."))
        return {folder.name: size_of(folder) for folder in complete if folder.is_dir()}

    async def _intact(self, key: str) -> bool:
        folder, now = self._root / key, time.monotonic()
        if not folder.exists():
            return False
        if now >= self._checked.get(key, -_TRUST_SECONDS) + _TRUST_SECONDS:
            if not await asyncio.to_thread(_intact, folder):
                return False
            self._checked[key] = now
        if not await asyncio.to_thread(self._check, folder, key in self._doubted):
            return False
        self._doubted.discard(key)
        return True


@contextlib.contextmanager
def _used(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        # Does not block: an entry is removed under its `.lock`, which the caller holds.
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(file.fileno())
        yield


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """An entry of a cache, including leftovers of interrupted attempts to make it."""

    root: Path
    key: str
    size: int
    """Bytes on the disk."""
    used_at: float
    """Seconds since the epoch."""

    def remove(self) -> bool:
        """Remove the entry, or return False if it is in use."""
        with ExitStack() as files:
            for name in (f".{self.key}.lock", f".{self.key}.use"):
                file = files.enter_context((self.root / name).open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            for folder in _folders(self.root, self.key):
                sandbox.remove(folder)
        return True


def entries(cache: Path) -> list[CachedFolder]:
    """Return the entries of all caches one or two levels below this folder."""
    locks = [*cache.glob("*/.*.lock"), *cache.glob("*/*/.*.lock")]
    cached = (_entry(lock.parent, lock.name[1 : -len(".lock")]) for lock in sorted(locks))
    return [entry for entry in cached if entry.size]


def _entry(root: Path, key: str) -> CachedFolder:
    use = root / f".{key}.use"
    marks = [path for path in (use, root / key) if path.exists()]
    used_at = marks[0].stat().st_mtime if marks else 0.0
    return CachedFolder(root, key, sum(map(size_of, _folders(root, key))), used_at)


def _folders(root: Path, key: str) -> list[Path]:
    return [path for path in (root / key, *root.glob(f".{key}.part-*")) if path.is_dir()]


def size_of(folder: Path) -> int:
    """Return the bytes that the files below a folder take on its disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


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
                digest.update(os.fsencode(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
    return digest.hexdigest()
