"""Confining QEMU: a guest that breaks out of it finds nobody's process in an empty room.

QEMU gets its folder and the read-only /usr; it is nobody, without
capabilities, in mount, PID, IPC and UTS namespaces of its own. It keeps the
host's network namespace, in which the guest's SSH port is forwarded.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgym import proc
from kgym.sandbox import NOBODY

KVM_DEVICE = Path("/dev/kvm")
# An unprivileged program could not walk to a work folder in somebody's home.
_MOUNT_SCRIPT = 'mount --bind "$1" /mnt && shift && exec "$@"'


def confined(argv: Sequence[str], folder: Path, inside: str) -> list[str]:
    """Return the command that runs `argv` with the folder, from `sandbox.prepare`, at `inside`."""
    for tool in ("bwrap", "setpriv", "unshare"):
        proc.require(tool)
    if os.geteuid() != 0:
        return [*_room(str(folder), inside), *argv]
    ids = (f"--reuid={NOBODY}", f"--regid={NOBODY}", *_groups())
    return [
        *("unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", _MOUNT_SCRIPT, "sh", str(folder)),
        *("setpriv", *ids, "--no-new-privs", "--pdeathsig=KILL"),
        *_room("/mnt", inside),
        *argv,
    ]


def _groups() -> Iterator[str]:
    try:
        yield f"--groups={KVM_DEVICE.stat().st_gid}"
    except OSError:
        yield "--clear-groups"


def _room(folder: str, inside: str) -> Iterator[str]:
    yield from ("bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
    yield from ("--unshare-cgroup-try", "--die-with-parent", "--clearenv")
    yield from ("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind", "/usr", "/usr")
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
        elif Path("/", name).exists():
            yield from ("--ro-bind", f"/{name}", f"/{name}")
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    yield from ("--ro-bind-try", "/etc/alternatives", "/etc/alternatives")
    yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # noqa: S108
    yield from ("--dev-bind-try", str(KVM_DEVICE), str(KVM_DEVICE))
    yield from ("--bind", folder, inside, "--chdir", inside, "--")
