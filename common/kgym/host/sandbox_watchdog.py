"""The watchdog that kills a sandbox over its limits.

Cgroups would count exactly, but are not always available: containers see them read-only, and
unprivileged workers have none. So the processes of the sandbox's PID namespace are measured from
outside, through its own /proc, ten times a second. Hard limits (`prlimit` in `sandbox.py`) bound
what they can take between two measurements. Memory that no process shows is bounded by what is
left on the host.
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
# Counting folders takes long: it is repeated after this many times its own duration.
_DISK_SHARE = 50
_GONE_SECONDS = 10.0

# Not the default pool: hashing and packing may occupy all of its threads.
_THREADS = ThreadPoolExecutor(64, "quota")


class SandboxStatus:
    """The status file of bubblewrap (`--json-status-fd`), with process numbers of `space`."""

    def __init__(self, space: PidNamespace) -> None:
        self._space = space
        self.fd = os.memfd_create("kgym-status")

    def __enter__(self) -> "SandboxStatus":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def process(self) -> Path | None:
        """Return /proc/PID of the sandbox's first process; None if it is not running."""
        first, _, _ = os.pread(self.fd, 4096, 0).partition(b"\n")
        if not first.endswith(b"}"):
            return None
        report = json.loads(first)
        process = self._space.process(report["child-pid"])
        try:
            # The kernel reuses process numbers, but the new process is in another namespace.
            if (process / "ns/pid").stat().st_ino != report["pid-namespace"]:
                return None
            state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return None
        return None if state == b"Z" else process

    def processes(self) -> list[Path]:
        """Return /proc/PID of every process in the sandbox; raise OSError if it has ended."""
        first = self.process()
        if first is None:
            return []
        folder = first / "root/proc"
        # Until bubblewrap has changed its root, this is still the host's /proc.
        if (folder / "1/ns/pid").stat().st_ino != (first / "ns/pid").stat().st_ino:
            return []
        return [folder / name for name in os.listdir(folder) if name.isdecimal()]

    def ended(self) -> bool:
        """Return whether the program ran and ended; False if it was not started, or killed."""
        return b'"exit-code"' in os.pread(self.fd, 4096, 0)

    async def gone(self) -> None:
        """Kill the remaining processes of a sandbox, and wait until they are dead.

        Raises InfrastructureError `sandbox_alive` after _GONE_SECONDS.
        """
        end = time.monotonic() + _GONE_SECONDS
        while (process := self.process()) is not None:
            with suppress(OSError):
                _kill(process)
            if time.monotonic() > end:
                raise InfrastructureError("sandbox_alive", "a killed sandbox did not end")
            await asyncio.sleep(0.005)


def _kill(process: Path) -> None:
    """Kill the process of this /proc/PID. Its number is another in this process's namespace."""
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


async def watch_processes(
    limits: SandboxLimits, status: SandboxStatus, folders: Sequence[Path]
) -> Never:
    """Measure processes and memory until cancelled; raise UserError `sandbox_limit`.

    Raises InfrastructureError `host_memory` or `disk_full` if the host's memory or the folders'
    disk is almost full: this sandbox may use it in ways that no process shows, but so may others.
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
    """Measure the writable folders until cancelled; raise UserError `sandbox_limit`."""
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
        few = min(10_000, seen.f_files // 50)  # 0 if the file system has no table of inodes
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
    if tasks <= limits.processes:  # else the limit is exceeded already, and reading takes time
        for process in processes:
            figures = _status(process / "status")
            tasks += max(figures.get(b"Threads", 1) - 1, 0)
            memory += 1024 * sum(figures.get(name, 0) for name in _MEMORY)
    if tasks > limits.processes:
        raise exceeded("processes", str(limits.processes), f"{tasks} running")
    if memory > limits.memory:
        used = f"{mib(memory)} in use by {tasks} processes"
        if files:
            used += f", {mib(files)} of it files in /tmp and /dev/shm"
        raise exceeded("memory", mib(limits.memory), used)


_MEMORY = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")


def _status(path: Path) -> dict[bytes, int]:
    """Return the numbers of /proc/PID/status (proc(5)); none if the process has ended."""
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
    """Return the bytes of available memory and swap, and the bytes to leave free."""
    figures = _status(Path("/proc/meminfo"))
    left = figures.get(b"MemAvailable", figures[b"MemFree"]) + figures[b"SwapFree"]
    return left * 1024, figures[b"MemTotal"] * 1024 // 32


class _Disk:
    """The size of the writable folders.

    Counting takes long, so it is done when the free space of their disks has shrunk by what was
    still allowed, or after a multiple of the last count's duration (_DISK_SHARE).
    """

    def __init__(
        self, limits: SandboxLimits, status: SandboxStatus, folders: Sequence[Path]
    ) -> None:
        self._limits = limits
        self._status = status
        self._folders = folders
        self._due = 0.0
        # Free bytes of the disk below which the folders may have exceeded their limit.
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
    """Return the bytes on the disk in the folders; raise `sandbox_limit` for files or depth."""
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
        except OSError as error:  # removed, or not readable: `_look_at_host` watches the disk too
            if error.errno == errno.ENAMETOOLONG:
                raise exceeded("depth", "paths of 4,095 bytes", "longer ones made") from error
    return used


def _unlinked(status: SandboxStatus) -> int:
    """Return the bytes of unlinked files that are open or (visible to root only) mapped."""
    memory = os.fstat(status.fd).st_dev  # the device of shared memory, which is not on a disk
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
