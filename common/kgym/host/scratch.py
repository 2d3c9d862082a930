"""Folders for temporary files, which a killed process leaves to the next one to remove."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Context manager: a new folder `kgym-KIND-…`; remove those of killed processes.

    Its owner holds a lock on it, which the kernel releases when the process ends.
    """
    for path in Path(tempfile.gettempdir()).glob(f"kgym-{kind}-*"):
        with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_NB):
            shutil.rmtree(path, ignore_errors=True)
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"kgym-{kind}-"))
        with _locked(path):
            # Before it was locked, another process may have removed it as a leftover.
            if path.exists():
                try:
                    yield path
                finally:
                    shutil.rmtree(path, ignore_errors=True)
                return


@contextlib.contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    # Not through a link, which could lead to a folder that is none of ours.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)
