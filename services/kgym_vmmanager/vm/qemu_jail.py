"""Confining QEMU: a guest that breaks out of it finds no file, no network and no other process.

QEMU sees its folder and the read-only /usr. It is nobody, without capabilities and the worker's
environment, in user, mount, PID, IPC, UTS and network namespaces of its own, and cannot create
more. Its network is a private loopback with the port that is forwarded to the guest's SSH: a
short-lived helper enters the namespace, connects, and hands the socket over.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgym.host import pid_namespace, proc
from kgym.host.pid_namespace import PidNamespace
from kgym.host.sandbox import NOBODY
from kgym.host.sandbox_watchdog import SandboxStatus

KVM_DEVICE = Path("/dev/kvm")
# Limit of each file of a QEMU without a disk, which writes none that is large.
MOST_FILE = 16 << 20
# bubblewrap needs the /proc of its PID namespace. The folder is bound to /mnt, as nobody could not
# walk to a work folder in somebody's home. SIGXFSZ is ignored, so that a write beyond the file
# limit fails with EFBIG, which QEMU reports, instead of killing QEMU.
_MOUNT_SCRIPT = (
    'trap "" XFSZ && mount -t proc proc /proc && mount --bind "$1" /mnt && shift && exec "$@"'
)
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
# Arguments: port, seconds, namespaces; stdin is the socket for the connection. It calls setns
# itself, since in the user namespace the interpreter may be out of reach.
_CONNECT = """
import ctypes, os, socket, sys
"loaded before it may be out of reach".encode("idna")
for space in [os.open(path, os.O_RDONLY) for path in sys.argv[3:]]:
    if ctypes.CDLL(None, use_errno=True).setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])), float(sys.argv[2]))
socket.send_fds(socket.socket(fileno=0), [b"."], [link.fileno()])
"""


@dataclass(frozen=True, slots=True)
class Confined:
    """A program in its jail."""

    process: asyncio.subprocess.Process
    status: SandboxStatus
    space: PidNamespace

    def connect(self, port: int, limit: float) -> socket.socket:
        """Connect to a port of its loopback; blocks for `limit` seconds at most. Raises OSError."""
        first = self.status.process()
        if first is None:
            raise ConnectionRefusedError("the confined program has ended")
        ours, theirs = socket.socketpair()
        spaces = [str(path) for path in (*self.space.rights, first / "ns/net")]
        with ours, theirs:
            ours.settimeout(limit)
            helper = subprocess.Popen(
                [sys.executable, "-ISc", _CONNECT, str(port), f"{limit:g}", *spaces],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
            )
            theirs.close()
            try:
                _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            finally:
                helper.kill()
                error = helper.communicate()[1].decode(errors="replace").strip()
        if not fds:
            raise ConnectionRefusedError(error.rpartition("\n")[2] or "no connection")
        link = socket.socket(fileno=fds[0])
        link.setblocking(True)  # the helper's timeout has made it non-blocking
        return link


@contextlib.asynccontextmanager
async def confined(
    argv: Sequence[str], folder: Path, inside: str, most: int = MOST_FILE
) -> AsyncIterator[Confined]:
    """Run `argv` with the folder (from `sandbox.prepare`) at `inside`; kill it at the end.

    Its files are limited to `most` bytes each. Raises InfrastructureError if it cannot be started.
    """
    for tool in ("bwrap", "prlimit", "setpriv", "unshare"):
        proc.require(tool)
    space = await asyncio.to_thread(pid_namespace.current)
    with SandboxStatus(space) as status:
        words = [*space.entering(), *_outside(folder, most), *_room(inside, status.fd), *argv]
        process = await proc.spawn(words, env=_ENVIRONMENT, pass_fds=(status.fd,))
        try:
            yield Confined(process, status, space)
        finally:
            await proc.kill(process)
            await status.gone()


def _outside(folder: Path, most: int) -> Iterator[str]:
    yield from ("prlimit", f"--fsize={most}")
    yield from ("unshare", "--mount", "--propagation", "private")
    yield from ("sh", "-c", _MOUNT_SCRIPT, "sh", str(folder))
    if proc.privileged():
        yield from ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", *_groups())
        yield from ("--no-new-privs", "--pdeathsig=KILL")


def _groups() -> Iterator[str]:
    try:
        yield f"--groups={KVM_DEVICE.stat().st_gid}"
    except OSError:
        yield "--clear-groups"


def _room(inside: str, status: int) -> Iterator[str]:
    yield from ("bwrap", "--unshare-all", "--unshare-user", "--disable-userns")
    yield from ("--uid", str(NOBODY), "--gid", str(NOBODY))
    yield from ("--die-with-parent", "--json-status-fd", str(status), "--clearenv")
    yield from ("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind", "/usr", "/usr")
    # QEMU puts the overlay of snapshot=on into TMPDIR: on disk in the VM's folder, not in a tmpfs.
    yield from ("--setenv", "TMPDIR", inside)
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
        elif Path("/", name).exists():
            yield from ("--ro-bind", f"/{name}", f"/{name}")
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    yield from ("--ro-bind-try", "/etc/alternatives", "/etc/alternatives")
    yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # noqa: S108
    yield from ("--dev-bind-try", str(KVM_DEVICE), str(KVM_DEVICE))
    yield from ("--bind", "/mnt", inside, "--chdir", inside, "--")
