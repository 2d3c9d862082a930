"""What this process may use of its host: cores and memory, as its cgroups and its affinity allow.

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
        """Return what this process may use now; /proc and /sys are looked for below `root`."""
        cores: list[float] = [len(os.sched_getaffinity(0))]
        memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        for folder in _cgroups(root):
            cores += _quota(folder)
            # Where there is no limit, a word in version 2, and an immense number in version 1.
            memory += _numbers(folder / "memory.max") or _numbers(folder / "memory.limit_in_bytes")
        return cls(max(1, int(min(cores))), min(memory))


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of our cgroups and of those above them.

    In a container, /proc may name groups of the host's, which are not to be seen; its own are
    then those right below the mount.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        mount = root / "sys/fs/cgroup" / controllers
        folder = mount / group.lstrip("/")
        yield from (one for one in (folder, *folder.parents) if one.is_relative_to(mount))


def _quota(folder: Path) -> Iterator[float]:
    """Yield the cores that the group has the time of, if that is limited."""
    with suppress(OSError, ValueError):
        time, period = (folder / "cpu.max").read_text().split()
        yield int(time) / int(period)
    for time_ in _numbers(folder / "cpu.cfs_quota_us"):
        for period_ in _numbers(folder / "cpu.cfs_period_us"):
            yield time_ / period_


def _numbers(path: Path) -> list[int]:
    """Return the number in the file, if there is one, and it is a limit."""
    with suppress(OSError, ValueError):
        number = int(path.read_text())
        return [number] if number > 0 else []
    return []
