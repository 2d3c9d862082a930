"""A worker's own folder below one that it may share with others, as replicas of a container do.

The folder is locked (flock(2)) while the worker lives; the kernel releases the lock however the
worker ends. The next worker that starts removes the folders whose locks it gets: those of dead
workers.
"""

import asyncio
import contextlib
import fcntl
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from kgym.host import sandbox

_PREFIX = "worker-"


@contextlib.asynccontextmanager
async def own_folder(shared: Path) -> AsyncIterator[Path]:
    """Context manager: a new, locked folder below `shared`; remove it at the end."""
    await asyncio.to_thread(_remove_dead, shared)
    folder, lock = _make(shared)
    try:
        yield folder
    finally:
        await asyncio.to_thread(sandbox.remove, folder)
        os.close(lock)


def remove_left(work: Path) -> None:
    """Remove folders of dead workers from all shared folders in `work`.

    Workers clean up only their own shared folder, and the next platform may use others.
    """
    for shared in work.glob("*"):
        _remove_dead(shared)


def _make(shared: Path) -> tuple[Path, int]:
    """Return a new folder and the file descriptor that locks it."""
    shared.mkdir(parents=True, exist_ok=True)
    while True:
        folder = shared / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        folder.mkdir()
        lock = _lock(folder)
        if lock is not None:
            return folder, lock
        # A worker that starts now got the lock first, and removes the folder as a dead worker's.


def _lock(folder: Path) -> int | None:
    """Lock the folder; return None if it is locked or was removed."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.lstat(folder)):
            return lock
    os.close(lock)
    return None


def _remove_dead(shared: Path) -> None:
    for folder in shared.glob(f"{_PREFIX}*"):
        lock = _lock(folder)
        if lock is not None:
            sandbox.remove(folder)
            os.close(lock)
