"""A PID namespace for all sandboxes of this process; it ends with the process, whatever kills it.

When the first process of a PID namespace ends, the kernel kills all others in it and below, in
whatever state they are, and frees the mounts, loop devices and network namespaces that only they
held. A parent-death signal alone cannot do that: if a parent is killed between the child's fork(2)
and prctl(2), the child survives (bubblewrap's waits for its parent before it requests the signal).

The first process reads a pipe whose other end only this process has. It ignores SIGCHLD, so that
orphans in the namespace leave no zombies (set by env(1), as Debian's shell cannot), and mounts the
namespace's /proc in its own mount namespace. Without root, there is also a user namespace, which
all sandboxes share.
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
    """A running namespace; `first` is the number of its first process in this process's /proc."""

    first: int

    def entering(self, *spaces: str) -> tuple[str, ...]:
        """The nsenter(1) command that starts another in this namespace, and in `spaces`."""
        words = [f"--pid=/proc/{self.first}/ns/pid", *spaces]
        for user in self.rights:
            words += [f"--user={user}", "--preserve-credentials"]
        return ("nsenter", *words, "--")

    @property
    def spaces(self) -> tuple[str, ...]:
        """Options of nsenter(1) for the mount namespace that has this namespace's /proc."""
        return (f"--mount=/proc/{self.first}/ns/mnt",)

    @property
    def rights(self) -> list[Path]:
        """The user namespace to enter first, without which an ordinary user may enter no other."""
        return [] if proc.privileged() else [Path(f"/proc/{self.first}/ns/user")]

    def process(self, number: int) -> Path:
        """Return /proc/PID of the process with this number in the namespace."""
        return Path(f"/proc/{self.first}/root/proc/{number}")


_lock = threading.Lock()
_running: "tuple[subprocess.Popen[bytes], PidNamespace] | None" = None


def running() -> PidNamespace | None:
    """Return this process's namespace if it is running; does not block."""
    return _running[1] if _running is not None and _running[0].poll() is None else None


def current() -> PidNamespace:
    """Return this process's namespace; create it on first use, or if it has died.

    Raises InfrastructureError `no_sandbox` if it cannot be created.
    """
    global _running  # noqa: PLW0603 - one for the whole process
    with _lock:
        if (space := running()) is not None:
            return space
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
    output = b""
    assert process.stdout is not None
    while not output.endswith(b"\n") or b"pid " not in output:
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not chunk:
            _end(process)
            raise InfrastructureError(
                "no_sandbox",
                "no sandbox can be made here, and nothing runs without: this user, or this"
                " container, must be allowed to make user, mount and PID namespaces, and to mount"
                f" /proc in them: {output.decode(errors='replace').strip() or 'no output'}",
            )
        output += chunk
    return process, PidNamespace(int(output.rpartition(b"pid ")[2]))


def _end(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()  # the first process reads end of file, and exits
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(START_SECONDS)


def _forget() -> None:
    """Close the pipe in a forked process, which would keep a dead parent's namespace alive."""
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
