"""Where the platform of a data folder listens, if one runs."""

import fcntl
import json
from pathlib import Path

ADDRESS = "platform.json"
"""The file that a running platform holds locked; it tells the URL."""


def running(data: Path) -> str | None:
    """Return the URL of the platform that has this data folder now, if there is one."""
    try:
        with (data / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return str(json.load(file)["url"])
    except (OSError, ValueError, KeyError):
        return None
    return None
