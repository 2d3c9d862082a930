"""Read-only file-system images (squashfs), mounted once and kept for the next user.

Each image is mounted by a process of its own, its keeper, in a mount namespace
of its own, which sandboxes enter (`Sandbox`). The mount ends with the keeper,
and the keeper with this process (`pid_namespace.py`); nothing is seen outside.
A keeper may mount two: the one that is worked on, and another whose programs do
the work, as the sandbox's root; for no process is in two mount namespaces.

    mount         by the kernel, over a loop device: as root
    squashfuse    by FUSE: unprivileged (in a user namespace), or where the kernel refuses

Where both are refused, callers unpack the image.

The writable view comes from the kernel's overlay, or where that is refused, fuse-overlayfs.
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

# Where a keeper mounts its image; sandboxes mount on the numbered folders beside it.
PLACE = "/mnt/image"
# Where it mounts the image that is the sandboxes' root.
ROOT = "/mnt/root"
# Images that stay mounted while nobody uses them; each holds some MB and the pages last read.
KEPT = 4
START_SECONDS = 20.0
# Seconds for which a way of mounting that failed is not tried; the cause may pass.
REFUSED_SECONDS = 600.0

Way = Literal["mount", "squashfuse"]
WAYS: tuple[Way, ...] = ("mount", "squashfuse")

# Arguments: way, options of squashfuse, of the overlay, image, root; one of the images may be
# empty. Says its number on the host and which overlay works, then waits until its stdin closes. On
# the numbered folders, sandboxes mount: each in a namespace of its own.
_KEEPER = """
read -r pid rest </proc/self/stat && mount -t proc proc /proc && echo "$pid" || exit 3
mount -t tmpfs -o mode=0755,size=1m kgym /mnt && cd /mnt || exit 3
mkdir image root upper work merged 0 1 2 3 4 5 6 7 8 9 || exit 3
way=$1 options=$2
attach() {
    case $way in
    mount) mount -t squashfs -o loop,ro,nosuid,nodev "$1" $2 || exit 3 ;;
    squashfuse)
        setpriv --pdeathsig=KILL squashfuse -f -o "$options" "$1" $2 &
        until mountpoint -q $2; do
            kill -0 $! 2>/dev/null || exit 3
            sleep 0.02
        done ;;
    esac
}
[ -z "$4" ] || attach "$4" image
[ -z "$5" ] || attach "$5" root
if mount -t overlay -o "$3lowerdir=image,upperdir=upper,workdir=work" kgym merged; then
    umount merged
    echo overlay
elif command -v fuse-overlayfs >/dev/null; then
    echo fuse-overlayfs
else
    exit 3
fi
exec cat
"""


@dataclass(frozen=True, slots=True)
class Mounted:
    """An image, or two, in a keeper's namespace; `Sandbox` enters it."""

    keeper: int
    way: Way
    overlay: str
    """Who makes writable views of it: `overlay` (the kernel) or `fuse-overlayfs`."""

    @property
    def spaces(self) -> tuple[str, ...]:
        """The words for nsenter(1) that let a command start where the image is mounted."""
        return (f"--mount=/proc/{self.keeper}/ns/mnt",)


@dataclass(slots=True)
class _Keeper:
    """A process that keeps one image mounted; `users` are those who have it now."""

    process: subprocess.Popen[bytes]
    mounted: Mounted
    users: int = 0
    forgotten: bool = False
    used_at: float = field(default_factory=time.monotonic)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end_unused(self) -> None:
        """End it if it was forgotten and nobody uses it any more."""
        if self.forgotten and not self.users:
            _end(self.process)


class Images:
    """The images that this process has mounted, in one of the `ways`, the first that works."""

    def __init__(
        self, ways: Sequence[Way] = WAYS, refused_seconds: float = REFUSED_SECONDS
    ) -> None:
        # Why a way was given up, for now.
        self._refused: dict[Way, str] = {}
        self._refused_seconds = refused_seconds
        self._refused_until = 0.0
        self._ways = ways
        self._keepers: dict[_Identity, _Keeper] = {}
        self._end = weakref.finalize(self, _end_all, self._keepers)

    @property
    def refusal(self) -> str:
        """Why nothing can be mounted, in words."""
        return "; ".join(f"{way}: {why}" for way, why in self._refused.items())

    def close(self) -> None:
        """Unmount all."""
        self._end()

    def mount(
        self, image: Path | None, held: ExitStack, root: Path | None = None
    ) -> Mounted | None:
        """Return the image, mounted until `held` is closed; None where that cannot be done.

        With `root`, that image is mounted beside it, or alone. A file that was replaced since is
        another image. Blocks for some 10 ms if it is new.
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

        Who has it keeps it: what a patch makes a build say must not end the builds beside it.
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


# Which files are mounted: the image, and the root.
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
    """Start a keeper; return it, or why it did not come up."""
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
    said = _first_words(process)
    if len(said) > 1 and said[-1] in {"overlay", "fuse-overlayfs"}:
        return _Keeper(process, Mounted(int(said[0]), way, said[-1]))
    _end(process)
    return "; ".join(said[-3:]) or "it said nothing"


def _first_words(process: "subprocess.Popen[bytes]") -> list[str]:
    """Return the lines that a keeper prints until it is ready, or has ended."""
    assert process.stdout is not None
    said = b""
    end = time.monotonic() + START_SECONDS
    while not said.endswith((b"overlay\n", b"fuse-overlayfs\n")):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace").splitlines()


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _end_all(keepers: dict[_Identity, _Keeper]) -> None:
    for keeper in keepers.values():
        _end(keeper.process)
    keepers.clear()
