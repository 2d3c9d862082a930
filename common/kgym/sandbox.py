"""Running what nobody vouches for: builds of patched trees, compilers on submitted source.

A sandboxed program has no network, no privileges and no sight of the host but
its read-only /usr. It runs as nobody in mount, PID, IPC, UTS and user
namespaces of its own (bubblewrap), on folders that the caller hands in.

The folders are first mounted, in a private mount namespace, below /mnt: the
unprivileged program could not walk to a cache in somebody's home. Nothing has
to be unmounted: the mounts end with the last process of the namespace.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgym import proc

NOBODY = 65534
_STAGE = "/mnt"

# Arguments: (bind FOLDER | overlay OPTIONS)… -- COMMAND…; the n-th is mounted on /mnt/n.
_MOUNT_SCRIPT = """set -e
mount -t tmpfs -o mode=0755,size=1m kgym /mnt
n=0
while [ "$1" != -- ]; do
    mkdir /mnt/$n
    case $1 in
    bind) mount --bind "$2" /mnt/$n ;;
    overlay) mount -t overlay -o "$2" kgym /mnt/$n ;;
    esac
    n=$((n + 1))
    shift 2
done
shift
exec "$@"
"""

_LIMITS = ("--core=0", f"--fsize={16 << 30}", "--nproc=8192")

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LC_ALL": "C",
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True)
class Overlay:
    """A writable view of read-only folders: `lower`, the topmost first; changes go to `upper`."""

    lower: tuple[Path, ...]
    folder: Path

    @property
    def upper(self) -> Path:
        """The folder that holds what was changed."""
        return self.folder / "upper"

    def create(self) -> "Overlay":
        """Make the folders that take the changes."""
        for name in ("upper", "work"):
            prepare(self.folder / name)
        return self


def prepare(folder: Path) -> Path:
    """Make a folder that sandboxed programs may write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


class Sandbox:
    """Programs run in it see host folders at paths of our choice.

    Keys are paths inside the sandbox; `writable` folders come from `prepare`,
    overlays from `Overlay.create`.
    """

    def __init__(
        self,
        *,
        writable: Mapping[str, Path] | None = None,
        readonly: Mapping[str, Path] | None = None,
        overlays: Mapping[str, Overlay] | None = None,
    ) -> None:
        self._mounts: list[str] = []
        self._binds: list[str] = []
        for inside, folder in (readonly or {}).items():
            self._bind("--ro-bind", self._stage("bind", str(folder)), inside)
        for inside, folder in (writable or {}).items():
            self._bind("--bind", self._stage("bind", str(folder)), inside)
        for inside, overlay in (overlays or {}).items():
            self._bind("--bind", self._stage_overlay(overlay), inside)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,  # noqa: ASYNC109 - as in proc.run
        cwd: str = "/",
        stdin: bytes | Path = b"",
        on_line: Callable[[bytes], None] | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> proc.Completed:
        """Run a program to its end, as `proc.run` does."""
        proc.require("bwrap")
        done = await proc.run(
            [*self._outside(), *self._inside(cwd, env or {}), *argv],
            timeout=timeout,
            stdin=stdin,
            on_line=on_line,
            check=False,
        )
        done = replace(done, argv=tuple(argv))  # the way in is of no use in an error message
        if check:
            done.check()
        return done

    def _bind(self, how: str, source: str, inside: str) -> None:
        self._binds += [how, source, inside]

    def _stage(self, how: str, what: str) -> str:
        self._mounts += [how, what]
        return f"{_STAGE}/{len(self._mounts) // 2 - 1}"

    def _stage_overlay(self, overlay: Overlay) -> str:
        # By way of /mnt the options hold no path that would need quoting.
        lower = ":".join(self._stage("bind", str(folder)) for folder in overlay.lower)
        own = self._stage("bind", str(overlay.folder))
        options = f"lowerdir={lower},upperdir={own}/upper,workdir={own}/work"
        if os.geteuid() != 0:
            options += ",userxattr"
        return self._stage("overlay", options)

    def _outside(self) -> Iterator[str]:
        yield from ("unshare", "--mount", "--propagation", "private")
        if os.geteuid() != 0:
            yield from ("--user", "--map-root-user")
        yield from ("sh", "-c", _MOUNT_SCRIPT, "sh", *self._mounts, "--")
        yield from ("prlimit", *_LIMITS)
        if os.geteuid() == 0:
            ids = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            yield from ("setpriv", *ids, "--no-new-privs", "--pdeathsig=KILL")

    def _inside(self, cwd: str, env: Mapping[str, str]) -> Iterator[str]:
        yield from ("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent")
        yield from ("--uid", str(NOBODY), "--gid", str(NOBODY), "--new-session", "--clearenv")
        for name, value in {**_ENVIRONMENT, **env}.items():
            yield from ("--setenv", name, value)
        yield from ("--ro-bind", "/usr", "/usr")
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if Path("/", name).is_symlink():
                yield from ("--symlink", f"usr/{name}", f"/{name}")
            elif Path("/", name).exists():
                yield from ("--ro-bind", f"/{name}", f"/{name}")
        yield from ("--ro-bind-try", "/etc/alternatives", "/etc/alternatives")
        yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
        yield from ("--proc", "/proc", "--dev", "/dev")
        yield from ("--perms", "1777", "--size", str(4 << 30), "--tmpfs", "/tmp")  # noqa: S108
        yield from (*self._binds, "--chdir", cwd, "--")


def remove(folder: Path) -> None:
    """Remove a folder that sandboxed programs wrote to, whatever modes they left."""
    if os.geteuid() != 0:  # overlayfs leaves a folder of mode 0 in its work folder
        for parent, names, _ in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
