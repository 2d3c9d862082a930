"""Which process carries a run out, and whether it has ended: so that its runs can be resumed."""

import os
import socket
from pathlib import Path

_STARTED = 19
"""The place of a process's start in /proc/PID/stat, after the name."""


def own() -> str:
    """Return this process's name: host, process id and its start."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def dead(holder: str) -> bool:
    """Tell whether this process is known to have ended; of other hosts nothing is known."""
    host, _, rest = holder.rpartition(":")[0].rpartition(":")
    started = holder.rpartition(":")[2]
    if host != socket.gethostname() or not rest.isdecimal():
        return False
    return _started(int(rest)) != started


def _started(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[_STARTED]
