"""What a process may use of its host."""

import os
from pathlib import Path

import pytest

from kgym.host.resources import Host

WHOLE = Host.here(Path("/nowhere"))
MIB = 1 << 20


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_limits_it_is_the_whole_host(tmp_path: Path) -> None:
    assert len(os.sched_getaffinity(0)) == WHOLE.cores
    free = {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"}
    free |= {"sys/fs/cgroup/a/cpu.max": "max 100000"}
    assert Host.here(written(tmp_path, free)) == WHOLE


@pytest.mark.parametrize(
    "files",
    [
        # of the group itself, and of one above it
        {"sys/fs/cgroup/a/b/cpu.max": "150000 100000", "sys/fs/cgroup/a/memory.max": f"{64 * MIB}"},
        # in a container: the path is the host's, and is not to be seen
        {"sys/fs/cgroup/cpu.max": "50000 100000", "sys/fs/cgroup/memory.max": f"{64 * MIB}"},
    ],
)
def test_a_group_is_limited_by_itself_and_by_those_above(
    tmp_path: Path, files: dict[str, str]
) -> None:
    root = written(tmp_path, {"proc/self/cgroup": "0::/a/b", **files})
    assert Host.here(root) == Host(cores=1, memory=64 * MIB)


def test_version_1_says_so_in_other_files(tmp_path: Path) -> None:
    groups = "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/x"
    files = {
        "proc/self/cgroup": groups,
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{32 * MIB}",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert Host.here(written(tmp_path, files)) == Host(cores=1, memory=32 * MIB)
