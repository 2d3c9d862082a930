"""Read-only file-system images (squashfs), mounted once and kept mounted for the next user.

Each image is mounted by a process of its own, its keeper, in a private mount namespace that
sandboxes enter (`Sandbox`). The mount ends with the keeper, and the keeper with this process
(`pid_namespace.py`); the host does not see it. A keeper may mount two images, one to work on and
one whose programs do the work as the sandbox's root, since a process is in one mount namespace.

    mount         by the kernel, with a loop device: as root
    squashfuse    by FUSE: unprivileged (in a user namespace), or if the kernel refuses

If both fail, callers unpack the image.

Writable views use the kernel's overlay, or fuse-overlayfs if the kernel refuses.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kgym.host import pid_namespace, proc

# Mount point of a keeper's image; sandboxes mount on the numbered folders beside it.
PLACE = "/mnt/image"
# Mount point of the image that is the sandboxes' root.
ROOT = "/mnt/root"
# Number of unused images that stay mounted; each costs some MB and the pages last read.
KEPT = 4
START_SECONDS = 20.0
# Time for which a failed way of mounting is not tried again; the cause may be temporary.
REFUSED_SECONDS = 600.0

Way = Literal["mount", "squashfuse"]
WAYS: tuple[Way, ...] = ("mount", "squashfuse")

# Arguments: way, options of squashfuse, of the overlay, image, root; one of the images may be
# empty. Prints its process number on the host and which overlay works, then waits until stdin
# closes. Sandboxes mount on the numbered folders, each in its own namespace.
_KEEPER = Path(__file__).with_name("squashfs_keeper.sh").read_text()


@dataclass(frozen=True, slots=True)
class Mounted:
    """One or two images in a keeper's namespace, which a `Sandbox` enters."""

    keeper: int
    way: Way
    overlay: str
    """How writable views are mounted: `overlay` (by the kernel) or `fuse-overlayfs`."""

    @property
    def spaces(self) -> tuple[str, ...]:
        """Options of nsenter(1) for the namespace in which the image is mounted."""
        return (f"--mount=/proc/{self.keeper}/ns/mnt",)


@dataclass(slots=True)
class _Keeper:
    """A process that keeps images mounted, and the number of its current users."""

    process: subprocess.Popen[bytes]
    mounted: Mounted
    users: int = 0
    forgotten: bool = False
    used_at: float = field(default_factory=time.monotonic)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end_unused(self) -> None:
        """End the process if it was forgotten and has no users."""
        if self.forgotten and not self.users:
            _end(self.process)


class Images:
    """The images that this process has mounted, each by the first of `ways` that works."""

    def __init__(
        self, ways: Sequence[Way] = WAYS, refused_seconds: float = REFUSED_SECONDS
    ) -> None:
        # Errors of the ways that failed, until `_refused_until`.
        self._refused: dict[Way, str] = {}
        self._refused_seconds = refused_seconds
        self._refused_until = 0.0
        self._ways = ways
        self._keepers: dict[_Identity, _Keeper] = {}
        self._end = weakref.finalize(self, _end_all, self._keepers)

    @property
    def refusal(self) -> str:
        """Why nothing can be mounted, as text."""
        return "; ".join(f"{way}: {why}" for way, why in self._refused.items())

    def close(self) -> None:
        """Unmount all."""
        self._end()

    def mount(
        self, image: Path | None, held: ExitStack, root: Path | None = None
    ) -> Mounted | None:
        """Return the image, mounted until `held` is closed; None if it cannot be mounted.

        `root` is mounted beside it, or alone. A replaced file counts as another image. Blocks for
        about 10 ms if it is not mounted yet.
        """
        identity = (_identity(image), _identity(root))
        keeper = self._keepers.get(identity)
        if keeper is None or not keeper.alive:
            self._end_idle(KEPT - 1)
            keeper = self._start(image, root)
            if keeper is None:
                return None
            self._keepers[identity] = keeper
        held.enter_context(_using(keeper))
        return keeper.mounted

    def forget(self, mounted: Mounted) -> None:
        """Mount the image again for the next user, because reading it failed for one.

        Current users keep it: a patch may fake the error, and must not end other builds.
        """
        for identity, keeper in list(self._keepers.items()):
            if keeper.mounted is mounted:
                del self._keepers[identity]
                keeper.forgotten = True
                keeper.end_unused()

    def _start(self, image: Path | None, root: Path | None) -> _Keeper | None:
        if time.monotonic() >= self._refused_until:
            self._refused.clear()
        for way in self._ways:
            if way in self._refused:
                continue
            started = _start(way, image, root)
            if isinstance(started, _Keeper):
                return started
            self._refused[way] = started
            self._refused_until = time.monotonic() + self._refused_seconds
        return None

    def _end_idle(self, kept: int) -> None:
        idle = [item for item in self._keepers.items() if not item[1].users]
        idle.sort(key=lambda item: item[1].used_at)
        for identity, keeper in idle[: max(0, len(idle) - kept)]:
            del self._keepers[identity]
            _end(keeper.process)


# Identities of the mounted files: the image, and the root.
_Identity = tuple[tuple[int, ...] | None, tuple[int, ...] | None]


def _identity(image: Path | None) -> tuple[int, ...] | None:
    if image is None:
        return None
    status = image.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextlib.contextmanager
def _using(keeper: _Keeper) -> Iterator[None]:
    keeper.users += 1
    try:
        yield
    finally:
        keeper.users -= 1
        keeper.used_at = time.monotonic()
        keeper.end_unused()


def _start(way: Way, image: Path | None, root: Path | None) -> _Keeper | str:
    """Start a keeper; return it, or the reason why it failed."""
    privileged = proc.privileged()
    if way == "mount" and not privileged:
        return "only root mounts images"
    for program in ("nsenter", *(("squashfuse",) if way == "squashfuse" else ())):
        if shutil.which(program) is None:
            return f"there is no {program}"
    options = ("ro", "") if privileged else ("ro,uid=0,gid=0", "userxattr,")
    images = (str(image or ""), str(root or ""))
    process = subprocess.Popen(
        [
            *pid_namespace.current().entering(),
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", _KEEPER, "sh", way, *options, *images),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=proc.environment(),
        start_new_session=True,
    )
    lines = _first_lines(process)
    if len(lines) > 1 and lines[-1] in {"overlay", "fuse-overlayfs"}:
        return _Keeper(process, Mounted(int(lines[0]), way, lines[-1]))
    _end(process)
    return "; ".join(lines[-3:]) or "no output"


def _first_lines(process: "subprocess.Popen[bytes]") -> list[str]:
    """Return the lines that a keeper prints until it is ready, or has ended."""
    assert process.stdout is not None
    output = b""
    end = time.monotonic() + START_SECONDS
    while not output.endswith((b"overlay\n", b"fuse-overlayfs\n")):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not chunk:
            break
        output += chunk
    return output.decode(errors="replace").splitlines()


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _end_all(keepers: dict[_Identity, _Keeper]) -> None:
    for keeper in keepers.values():
        _end(keeper.process)
    keepers.clear()
