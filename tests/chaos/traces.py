"""What a platform has left on this machine: processes, mounts, temporary files."""

import fcntl
import os
from pathlib import Path


def processes(mark: str) -> list[str]:
    """Processes (but this one) that carry the mark in their words, environment or mounts."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        for name in ("cmdline", "environ", "mountinfo"):
            try:
                text = (folder / name).read_bytes()
            except OSError:  # it has ended
                break
            if mark.encode() in text:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines.append(f"{folder.name}: {words or '(no words)'} (by its {name})")
                break
    return lines


def mounts(mark: str) -> list[str]:
    """Mounts in this process's namespace, which is the machine's, with the mark."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if mark in line]


def is_swept(data: Path) -> bool:
    """Whether each worker lives, and has removed what was left by those before it.

    A worker has a folder of its own, which is locked as long as it lives.
    """
    return all(
        len(own := list(shared.iterdir())) == 1 and _is_locked(own[0])
        for shared in (data / "work").iterdir()
    )


def _is_locked(folder: Path) -> bool:
    try:
        opened = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(opened)


def leftovers(data: Path) -> list[str]:
    """Work folders of attempts, and parts of cache entries that were never finished."""
    work = [path for path in (data / "work").glob("*/*") if path.name != "cache"]
    parts = (data / "cache").rglob(".*.part-*")
    return [str(path.relative_to(data)) for path in (*work, *parts)]
