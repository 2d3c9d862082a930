"""The cores and memory that this process may use, by its cgroups and its affinity.

Sources: sched_getaffinity(2), cgroups(7), the kernel's admin-guide/cgroup-v2.rst (`cpu.max`,
`memory.max`) and admin-guide/cgroup-v1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """Cores, and bytes of memory."""

    cores: int
    memory: int

    @classmethod
    def here(cls, root: Path = Path("/")) -> "Host":
        """Return what this process may use now; tests have /proc and /sys below `root`."""
        cores: list[float] = [len(os.sched_getaffinity(0))]
        memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        for folder in _cgroups(root):
            cores += _quota(folder)
            # Without a limit, version 2 has the word `max`, and version 1 an immense number.
            memory += _numbers(folder / "memory.max") or _numbers(folder / "memory.limit_in_bytes")
        return cls(max(1, int(min(cores))), min(memory))


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups and of their parents.

    In a container, /proc may name the host's groups, which the mount does not show; the
    container's own group is then the root of the mount.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        mount = root / "sys/fs/cgroup" / controllers
        folder = mount / group.lstrip("/")
        yield from (path for path in (folder, *folder.parents) if path.is_relative_to(mount))


def _quota(folder: Path) -> Iterator[float]:
    """Yield the group's limit of CPU time as a number of cores, if it has one."""
    with suppress(OSError, ValueError):
        time, period = (folder / "cpu.max").read_text().split()
        yield int(time) / int(period)
    for time_ in _numbers(folder / "cpu.cfs_quota_us"):
        for period_ in _numbers(folder / "cpu.cfs_period_us"):
            yield time_ / period_


def _numbers(path: Path) -> list[int]:
    """Return the limit in the file; nothing if there is no file, or no limit."""
    with suppress(OSError, ValueError):
        number = int(path.read_text())
        return [number] if number > 0 else []
    return []
