"""A sandbox for hostile programs: builds of patched trees, compilers on submitted source.

A sandboxed program has no network and no privileges, and sees nothing of the host but its
read-only /usr, or not even that if it has another `root`. It runs as nobody in its own mount, PID,
IPC, UTS and user namespaces (bubblewrap), with folders that the caller provides.

The folders are first mounted below /mnt in a private mount namespace, since the unprivileged
program could not reach a cache in a user's home. Nothing has to be unmounted: the mounts end with
the namespace's last process, and that process with this one, as all of them run in its PID
namespace (`pid_namespace.py`).

Its resources are limited twice: by hard limits per process, and by a watchdog over all its
processes and folders (`sandbox_watchdog.py`), which kills the sandbox and reports the reason.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kgym import tasks
from kgym.errors import InfrastructureError
from kgym.host import (
    pid_namespace,
    proc,
    sandbox_limits,
    sandbox_watchdog,
    squashfs,
    syscall_filter,
)
from kgym.host.pid_namespace import PidNamespace
from kgym.host.sandbox_limits import SandboxLimits
from kgym.host.squashfs import Mounted

NOBODY = 65534
_STAGE = "/mnt"
_REMOVE_SECONDS = 600.0

# Arguments: (bind FOLDER | HOW OPTIONS)… -- COMMAND…; the n-th is mounted on /mnt/n.
# In the namespace of a mounted image, /mnt is prepared, and shared with other sandboxes.
# Each program that a script starts costs about 1 ms of processor time, and a check has two
# sandboxes: so it makes all folders at once, and raises its own OOM score: should the host run out
# of memory in spite of the limits, the kernel kills in here first.
# fuse-overlayfs loses its parent-death signal when it acts for another user (setfsuid): it must
# not hold the output open, and dies with its process group.
_MOUNT_SCRIPT = Path(__file__).with_name("sandbox_mounts.sh").read_text()

# Maximum bytes of a file; a vmlinux with all its debug information has 1 to 2 GB.
_MOST_FILE = 16 << 30
_MOST_OPEN = 4096
# Distance of the hard limit of processes from the watchdog's, which reports the reason.
_MORE_PROCESSES = 64

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LC_ALL": "C",
    "TZ": "UTC",
}


# A folder, or an image; a sandbox can have at most one image.
Layer = Path | Mounted


@dataclass(frozen=True, slots=True)
class Overlay:
    """A writable view of the read-only layers `lower`, topmost first; changes go to `upper`."""

    lower: tuple[Layer, ...]
    folder: Path

    @property
    def upper(self) -> Path:
        """The folder of changed files."""
        return self.folder / "upper"

    def create(self) -> "Overlay":
        """Create the folders for changes."""
        for name in ("upper", "work"):
            prepare(self.folder / name)
        return self


def prepare(folder: Path) -> Path:
    """Create a folder that sandboxed programs may write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if proc.privileged():
        os.chown(folder, NOBODY, NOBODY)
    return folder


class Sandbox:
    """A set of folders and limits with which programs are run.

    Keys are paths inside the sandbox; `writable` folders come from `prepare`, overlays from
    `Overlay.create`. `root` provides the programs instead of the host, all of them below usr/. If
    it and a layer are images, the same keeper must have mounted both.
    """

    def __init__(
        self,
        *,
        writable: Mapping[str, Path] | None = None,
        readonly: Mapping[str, Path] | None = None,
        overlays: Mapping[str, Overlay] | None = None,
        root: Layer | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        self._limits = limits or SandboxLimits.of_host()
        self._folders = [
            *(writable or {}).values(),
            *(overlay.folder for overlay in (overlays or {}).values()),
        ]
        self._image: Mounted | None = None
        self._mounts: list[str] = []
        self._binds: list[str] = []
        self._root: str | None = None
        if isinstance(root, Mounted):
            self._image, self._root = root, squashfs.ROOT
        elif root is not None:
            self._root = self._stage("bind", str(root))
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
        timeout: float | None = None,  # noqa: ASYNC109 - as in proc.run
        cwd: str = "/",
        stdin: bytes | Path = b"",
        on_line: Callable[[bytes], None] | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> proc.Completed:
        """Run a program until it ends, as `proc.run` does; then kill all its descendants.

        Raises UserError `sandbox_limit` if it was killed over a limit; time is one of them unless
        `timeout` is shorter. Raises InfrastructureError `no_sandbox` if the sandbox could not be
        created; then nothing ran.
        """
        proc.require("bwrap")
        # Without a sandbox nothing runs. User 0 without capabilities is refused too, since the
        # kernel does not limit its processes.
        if not proc.privileged() and not await asyncio.to_thread(proc.countable):
            raise InfrastructureError(
                "no_sandbox",
                "this worker is the host's root without root's capabilities: its processes cannot"
                " be limited. Start it as another user, or with the capabilities",
            )
        limit = self._limits.seconds
        own_limit = timeout is None or limit <= timeout
        meter = sandbox_limits.Meter(self._limits.output)

        def counted(line: bytes) -> None:
            meter(line)
            if on_line is not None:
                on_line(line)

        # Only the first sandbox waits for a thread: to wake one takes up to a millisecond.
        if (space := pid_namespace.running()) is None:
            space = await asyncio.to_thread(pid_namespace.current)
        with (
            sandbox_watchdog.SandboxStatus(space) as status,
            _file(syscall_filter.program()) as rules,
        ):
            inside = self._inside(cwd, env or {}, status.fd, rules)
            program = proc.run(
                [*self._outside(space), *inside, *argv],
                timeout=limit if timeout is None else min(limit, timeout),
                # Programs in the sandbox can read the environment of its first process.
                env=_ENVIRONMENT,
                stdin=stdin,
                on_line=counted,
                check=False,
                pass_fds=(status.fd, rules),
                ends_with_namespace=True,
            )
            try:
                done = await self._watched(program, status)
            except proc.ProgramTimedOut:
                if not own_limit:
                    raise
                raise sandbox_limits.exceeded("time", f"{limit:g} s", "not at its end") from None
            # Only bubblewrap's own report proves that the program ran.
            if not status.ended():
                raise _not_made(done)
        done = replace(done, argv=tuple(argv))  # error messages name the program, not nsenter
        if check:
            done.check()
        return done

    async def _watched(
        self, program: Coroutine[None, None, proc.Completed], status: sandbox_watchdog.SandboxStatus
    ) -> proc.Completed:
        running = asyncio.create_task(program)
        watches = [
            asyncio.create_task(
                sandbox_watchdog.watch_processes(self._limits, status, self._folders)
            ),
            asyncio.create_task(sandbox_watchdog.watch_disk(self._limits, status, self._folders)),
        ]
        try:
            await asyncio.wait([running, *watches], return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                if watch.done():
                    watch.result()
            return await running
        finally:
            await tasks.end([running, *watches])
            await status.gone()

    def _bind(self, how: str, source: str, inside: str) -> None:
        self._binds += [how, source, inside]

    def _stage(self, how: str, what: str) -> str:
        # nsenter changes the working directory, from which a relative path would start.
        self._mounts += [how, os.path.abspath(what) if how == "bind" else what]
        return f"{_STAGE}/{len(self._mounts) // 2 - 1}"

    def _stage_overlay(self, overlay: Overlay) -> str:
        # Paths below /mnt need no quoting in mount options.
        lower = ":".join(map(self._stage_layer, overlay.lower))
        own = self._stage("bind", str(overlay.folder))
        options = f"lowerdir={lower},upperdir={own}/upper,workdir={own}/work"
        how = self._image.overlay if self._image else "overlay"
        if not proc.privileged() and how == "overlay":
            options += ",userxattr"
        return self._stage(how, options)

    def _stage_layer(self, layer: Layer) -> str:
        if isinstance(layer, Path):
            return self._stage("bind", str(layer))
        self._image = layer
        return squashfs.PLACE

    def _outside(self, space: PidNamespace) -> Iterator[str]:
        yield from space.entering(*(self._image or space).spaces)
        yield from ("unshare", "--mount", "--propagation", "private")
        yield from ("sh", "-c", _MOUNT_SCRIPT, "sh", *self._mounts, "--")
        if proc.privileged():
            ids = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            yield from ("setpriv", *ids, "--no-new-privs", "--pdeathsig=KILL")

    def _inside(self, cwd: str, env: Mapping[str, str], status: int, rules: int) -> Iterator[str]:
        yield from ("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent")
        yield from ("--disable-userns", "--seccomp", str(rules), "--json-status-fd", str(status))
        yield from ("--uid", str(NOBODY), "--gid", str(NOBODY), "--new-session", "--clearenv")
        for name, value in {**_ENVIRONMENT, **env}.items():
            yield from ("--setenv", name, value)
        yield from _programs(self._root)
        yield from ("--proc", "/proc", "--dev", "/dev")
        # The host's kernel may contain a fix, which its symbols, config and modules would reveal.
        for file in filter(os.path.exists, ("/proc/kallsyms", "/proc/config.gz", "/proc/modules")):
            yield from ("--ro-bind", "/dev/null", file)
        for folder in ("/tmp", "/dev/shm"):  # noqa: S108 - the sandbox's
            size = str(self._limits.memory + sandbox_limits.SLACK)
            yield from ("--perms", "1777", "--size", size, "--tmpfs", folder)
        yield from self._binds
        # Both are in memory and have no size limit, so they must not be writable.
        yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--")
        # Processes are counted per user namespace, hence the limit is set in this one (since Linux
        # 5.14, 21d1c5e386bc; before, all sandboxes of a worker share the count).
        yield from ("prlimit", "--core=0", f"--fsize={_MOST_FILE}", f"--nofile={_MOST_OPEN}")
        yield f"--data={self._limits.memory + sandbox_limits.SLACK}"
        yield f"--nproc={self._limits.processes + _MORE_PROCESSES}"


def _programs(root: str | None) -> Iterator[str]:
    """Yield the options of bubblewrap for the host's programs, or those of another root."""
    yield from ("--ro-bind", f"{root or ''}/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if root or Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
        elif Path("/", name).exists():
            yield from ("--ro-bind", f"/{name}", f"/{name}")
    if root is None:
        yield from ("--ro-bind-try", "/etc/alternatives", "/etc/alternatives")
        yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


def _not_made(done: proc.Completed) -> InfrastructureError:
    """Return the error of a sandbox that could not be created."""
    if done.returncode < 0:
        return InfrastructureError("no_sandbox", f"the sandbox was killed ({-done.returncode})")
    return InfrastructureError(
        "no_sandbox",
        "no sandbox can be made here, and nothing runs without: this user, or this container, must"
        " be allowed to make user and mount namespaces, and to mount overlays in them: "
        + (" / ".join(done.text.strip().splitlines()[-3:]) or f"status {done.returncode}"),
    )


@contextmanager
def _file(content: bytes) -> Iterator[int]:
    """Context manager: the descriptor of a file in memory, positioned at its start."""
    fd = os.memfd_create("kgym")
    try:
        os.pwrite(fd, content, 0)
        yield fd
    finally:
        os.close(fd)


def remove(folder: Path) -> None:
    """Remove a folder that sandboxed programs wrote to, with any modes and any depth."""
    # Not shutil.rmtree: it recurses as deeply as the folders are nested.
    commands = [["rm", "-rf"]]
    if not proc.privileged():  # overlayfs leaves a subfolder of mode 0 in its work folder
        commands.insert(0, ["chmod", "-R", "u+rwX"])
    for command in commands:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "--", folder],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_REMOVE_SECONDS,
            )
