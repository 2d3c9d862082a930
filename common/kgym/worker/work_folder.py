"""A worker's own folder below one that it may share with others, as replicas of a container do.

The folder is locked (flock(2)) as long as the worker lives, whatever ends it.
What a dead worker left is removed by the next one that starts: by who gets its
lock, and so by nobody while it lives.
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
    """Yield a new folder below `shared`, which nobody else removes; remove it at the end."""
    await asyncio.to_thread(_remove_dead, shared)
    folder, lock = _make(shared)
    try:
        yield folder
    finally:
        await asyncio.to_thread(sandbox.remove, folder)
        os.close(lock)


def remove_left(work: Path) -> None:
    """Remove what dead workers left in any of the folders in `work`, as of an earlier platform.

    A worker looks only into the one that it shares, and the next platform may have others.
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
        # A worker that started at this moment took it for a dead one's.


def _lock(folder: Path) -> int | None:
    """Lock the folder; None if another has it, or it is gone."""
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
