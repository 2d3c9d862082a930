"""Where the platform of a data folder listens, if one runs."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ADDRESS = "platform.json"
"""The file that a running platform holds locked; it is empty until the platform listens."""


@dataclass(frozen=True, slots=True)
class Running:
    """A platform that runs; `work` says whether it runs steps, or only shows and takes jobs."""

    url: str
    work: bool


def running(data: Path) -> Running | None:
    """Return the platform that has this data folder now, once it listens."""
    try:
        with (data / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = json.load(file)
                return Running(found["url"], found["work"])
    except (OSError, ValueError):
        return None
    return None


def lock(data: Path) -> IO[str] | None:
    """Take the data folder until the file is closed, which the end of the process does too.

    None if another platform has it.
    """
    file = (data / ADDRESS).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    return file


def announce(lock: IO[str], platform: Running) -> None:
    """Tell other commands where the platform listens."""
    lock.write(json.dumps({"url": platform.url, "work": platform.work, "pid": os.getpid()}))
    lock.flush()
