"""What a sandbox may use, and the watch that kills one that uses more.

Cgroups would count exactly, but cannot be relied on: a container sees them
read-only, and an unprivileged worker has none. So the processes of the
sandbox's PID namespace are looked at from outside, through its own /proc,
ten times a second. The little that they can take between two looks is
bounded by the sandbox's hard limits (`prlimit` in `sandbox.py`), and what no
process shows by what is left on the host.
"""

import asyncio
import errno
import json
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Never

from kgym.errors import InfrastructureError
from kgym.host.pid_namespace import PidNamespace
from kgym.host.sandbox_limits import SandboxLimits, exceeded, mib

_INTERVAL = 0.1
_DISK_INTERVAL = 0.25
# Folders are counted again when this many times the last count's time has passed.
_DISK_SHARE = 50
_GONE_SECONDS = 10.0

# A pool of its own: a worker that hashes and packs has the default one's threads all busy.
_THREADS = ThreadPoolExecutor(64, "quota")


class SandboxStatus:
    """What bubblewrap writes of the sandbox that it makes: the file of `--json-status-fd`.

    It runs in `space`, and counts processes as they are counted there.
    """

    def __init__(self, space: PidNamespace) -> None:
        self._space = space
        self.fd = os.memfd_create("kgym-status")

    def __enter__(self) -> "SandboxStatus":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def process(self) -> Path | None:
        """Return /proc/PID of the sandbox's first process; None before and after its life."""
        first, _, _ = os.pread(self.fd, 4096, 0).partition(b"\n")
        if not first.endswith(b"}"):
            return None
        said = json.loads(first)
        process = self._space.process(said["child-pid"])
        try:
            # The kernel gives numbers of dead processes to others, which live in other namespaces.
            if (process / "ns/pid").stat().st_ino != said["pid-namespace"]:
                return None
            state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return None
        return None if state == b"Z" else process

    def processes(self) -> list[Path]:
        """Return /proc/PID of every process in the sandbox; raise OSError where it has ended."""
        first = self.process()
        if first is None:
            return []
        folder = first / "root/proc"
        # Until bubblewrap has changed its root, this is the host's /proc.
        if (folder / "1/ns/pid").stat().st_ino != (first / "ns/pid").stat().st_ino:
            return []
        return [folder / name for name in os.listdir(folder) if name.isdecimal()]

    def ended(self) -> bool:
        """Whether the program ran and ended; else the sandbox was not made, or was killed."""
        return b'"exit-code"' in os.pread(self.fd, 4096, 0)

    async def gone(self) -> None:
        """Kill what is left of a sandbox whose program has ended; wait a limited time for it."""
        end = time.monotonic() + _GONE_SECONDS
        while (process := self.process()) is not None:
            with suppress(OSError):
                _kill(process)
            if time.monotonic() > end:
                raise InfrastructureError("sandbox_alive", "a killed sandbox did not end")
            await asyncio.sleep(0.005)


def _kill(process: Path) -> None:
    """Kill the process that this /proc/PID shows; its number differs between namespaces."""
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


async def watch_processes(
    limits: SandboxLimits, status: SandboxStatus, folders: Sequence[Path]
) -> Never:
    """Look at processes and memory until cancelled; raise UserError `sandbox_limit`.

    Raises InfrastructureError `host_memory` or `disk_full` when the host has
    hardly any memory left, or the folders' disk hardly any space: this sandbox
    may have taken it in ways that nothing shows.
    """

    def look() -> None:
        _look_at_host(folders)
        _look_at_processes(limits, status)

    loop = asyncio.get_running_loop()
    while True:
        await loop.run_in_executor(_THREADS, look)
        await asyncio.sleep(_INTERVAL)


async def watch_disk(
    limits: SandboxLimits, status: SandboxStatus, folders: Sequence[Path]
) -> Never:
    """Count what is in the writable folders until cancelled; raise UserError `sandbox_limit`."""
    loop = asyncio.get_running_loop()
    disk = _Disk(limits, status, folders)
    while True:
        await loop.run_in_executor(_THREADS, disk.look)
        await asyncio.sleep(_DISK_INTERVAL)


def _look_at_host(folders: Sequence[Path]) -> None:
    left, reserve = _host_memory()
    if left < reserve:
        raise InfrastructureError(
            "host_memory", f"the host has {mib(left)} of memory left; the sandbox was killed"
        )
    for seen in map(os.statvfs, folders):
        space = seen.f_bavail * seen.f_frsize
        few = min(10_000, seen.f_files // 50)  # 0 where files need no inode of a table
        if space < min(2 << 30, seen.f_blocks * seen.f_frsize // 50) or seen.f_favail < few:
            raise InfrastructureError(
                "disk_full",
                f"the disk has {mib(space)} and {seen.f_favail} files left; the sandbox was"
                " killed. Free some space, then restart the job",
            )


def _look_at_processes(limits: SandboxLimits, status: SandboxStatus) -> None:
    try:
        processes = status.processes()
        if not processes:
            return
        root = processes[0] / "root"
        files = sum(map(_tmpfs, (root / "tmp", root / "dev/shm")))
    except OSError:
        return
    tasks, memory = len(processes), files
    if tasks <= limits.processes:  # else their memory is not worth the time
        for process in processes:
            of_one = _status(process / "status")
            tasks += max(of_one.get(b"Threads", 1) - 1, 0)
            memory += 1024 * sum(of_one.get(name, 0) for name in _MEMORY)
    if tasks > limits.processes:
        raise exceeded("processes", str(limits.processes), f"{tasks} running")
    if memory > limits.memory:
        used = f"{mib(memory)} in use by {tasks} processes"
        if files:
            used += f", {mib(files)} of it files in /tmp and /dev/shm"
        raise exceeded("memory", mib(limits.memory), used)


_MEMORY = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")


def _status(path: Path) -> dict[bytes, int]:
    """Return the figures of /proc/PID/status (proc(5)), none of a process that has ended."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return {}
    words = (line.split(None, 2) for line in lines)
    return {word[0][:-1]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _tmpfs(folder: Path) -> int:
    seen = os.statvfs(folder)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize


def _host_memory() -> tuple[int, int]:
    """Return the bytes of memory and swap that can still be had, and those to leave."""
    figures = _status(Path("/proc/meminfo"))
    left = figures.get(b"MemAvailable", figures[b"MemFree"]) + figures[b"SwapFree"]
    return left * 1024, figures[b"MemTotal"] * 1024 // 32


class _Disk:
    """What writable folders hold.

    To count them takes long, so it is done when the free space of their disks
    has shrunk by what was still allowed, or after a while that makes it cheap.
    """

    def __init__(
        self, limits: SandboxLimits, status: SandboxStatus, folders: Sequence[Path]
    ) -> None:
        self._limits = limits
        self._status = status
        self._folders = folders
        self._due = 0.0
        # Free bytes below which the folders may hold too much.
        self._enough = 0

    def look(self) -> None:
        free = sum(seen.f_bavail * seen.f_frsize for seen in map(os.statvfs, self._folders))
        start = time.monotonic()
        if self._folders and (start >= self._due or free < self._enough):
            used = _count(self._folders, self._limits) + _unlinked(self._status)
            if used > self._limits.disk:
                raise exceeded("disk", mib(self._limits.disk), f"{mib(used)} written")
            now = time.monotonic()
            self._due = now + _DISK_SHARE * (now - start)
            self._enough = free - (self._limits.disk - used)


def _count(folders: Iterable[Path], limits: SandboxLimits) -> int:
    """Return the bytes on the disk in the folders, if these hold no more files than they may."""
    used = files = 0
    rest = [os.fspath(folder) for folder in folders]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    files += 1
                    if files > limits.files:
                        raise exceeded("files", str(limits.files), "more made")
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(entry.path)
        except OSError as error:  # gone, or closed to us: what is left on the disk is looked at too
            if error.errno == errno.ENAMETOOLONG:
                raise exceeded("depth", "paths of 4,095 bytes", "longer ones made") from error
    return used


def _unlinked(status: SandboxStatus) -> int:
    """Return the bytes of files without a name that are open or, as root sees, mapped."""
    memory = os.fstat(status.fd).st_dev  # where shared memory lies, which no disk holds
    sizes: dict[tuple[int, int], int] = {}
    for path in _open_files(status):
        with suppress(OSError):
            file = os.stat(path)
            if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev != memory:
                sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def _open_files(status: SandboxStatus) -> Iterator[Path]:
    with suppress(OSError):
        for process in status.processes():
            for folder in (process / "fd", process / "map_files"):
                with suppress(OSError):
                    yield from [folder / name for name in os.listdir(folder)]
