"""A PID namespace for all sandboxes of this process; it ends with the process, whatever kills it.

When the first process of a PID namespace ends, the kernel kills every other one
in it and below, wherever it is: half started, stopped, or waiting for a word of
a parent that is dead. The mounts, loop devices and network namespaces that only
they held go with them. A parent-death signal alone cannot do that: whoever is
killed between fork(2) and prctl(2) leaves a child that never hears of it
(bubblewrap's waits for its parent before it asks for the signal).

The first process reads a pipe of which this process alone has the other end. It
ignores SIGCHLD, so that orphans in the namespace leave no zombies (by env(1):
the shell of Debian cannot), and shows the namespace's /proc in a mount
namespace of its own. Unprivileged, there is a user namespace too, which all
share.
"""

import atexit
import contextlib
import os
import select
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.host import proc

START_SECONDS = 20.0

_FIRST = """
read -r pid rest </proc/self/stat && mount -t proc proc /proc || exit 3
echo "pid $pid"
exec env --ignore-signal=CHLD cat >/dev/null 2>&1
"""


@dataclass(frozen=True, slots=True)
class PidNamespace:
    """A running namespace; `first` is its first process, as this process counts."""

    first: int

    def entering(self, *spaces: str) -> tuple[str, ...]:
        """The words before a command that let it start in here, and in `spaces` of nsenter(1)."""
        words = [f"--pid=/proc/{self.first}/ns/pid", *spaces]
        for user in self.rights:
            words += [f"--user={user}", "--preserve-credentials"]
        return ("nsenter", *words, "--")

    @property
    def spaces(self) -> tuple[str, ...]:
        """The words for nsenter(1) that enter its mount namespace, with its own /proc."""
        return (f"--mount=/proc/{self.first}/ns/mnt",)

    @property
    def rights(self) -> list[Path]:
        """The user namespace that has to be entered for the right to enter others in here."""
        return [] if proc.privileged() else [Path(f"/proc/{self.first}/ns/user")]

    def process(self, number: int) -> Path:
        """Return /proc/PID of the process that has this number in here."""
        return Path(f"/proc/{self.first}/root/proc/{number}")


_lock = threading.Lock()
_running: "tuple[subprocess.Popen[bytes], PidNamespace] | None" = None


def current() -> PidNamespace:
    """Return this process's namespace; it is made when first asked for, and when it has died.

    Raises InfrastructureError `no_sandbox` where none can be made.
    """
    global _running  # noqa: PLW0603 - one for the whole process
    with _lock:
        if _running is not None and _running[0].poll() is None:
            return _running[1]
        if _running is not None:
            _end(_running[0])
        _running = _start()
        return _running[1]


def _start() -> "tuple[subprocess.Popen[bytes], PidNamespace]":
    for program in ("nsenter", "unshare"):
        proc.require(program)
    spaces = ["--fork", "--pid", "--mount", "--propagation", "slave"]
    if not proc.privileged():
        spaces += ["--user", "--map-root-user"]
    process = subprocess.Popen(
        ["unshare", *spaces, "sh", "-c", _FIRST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=proc.environment(),
        start_new_session=True,
    )
    said = b""
    assert process.stdout is not None
    while not said.endswith(b"\n") or b"pid " not in said:
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not chunk:
            _end(process)
            raise InfrastructureError(
                "no_sandbox",
                "no sandbox can be made here, and nothing runs without: this user, or this"
                " container, must be allowed to make user, mount and PID namespaces, and to mount"
                f" /proc in them: {said.decode(errors='replace').strip() or 'no word'}",
            )
        said += chunk
    return process, PidNamespace(int(said.rpartition(b"pid ")[2]))


def _end(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()  # the first process reads the end of its input, and ends
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(START_SECONDS)


def _forget() -> None:
    """Close it in a forked process, which would keep the namespace of a dead parent alive."""
    global _running, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _running is not None:
        process = _running[0]
        if process.stdin is not None:
            process.stdin.close()
        process.returncode = 0  # the forked process is not its parent
        _running = None


def _close() -> None:
    if _running is not None:
        _end(_running[0])


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
