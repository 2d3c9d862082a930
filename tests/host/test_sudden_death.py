"""A worker that is killed at any moment leaves no process, no mount and no loop device."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import traces
from tests.conftest import ROOT, SEED
from tests.host.test_sandbox import NOT_ROOT
from tests.host.test_squashfs import packed

pytestmark = pytest.mark.thorough

TIMES = "60"
LIMIT = 240


@pytest.mark.parametrize("way", ["mount", "squashfuse"])
@pytest.mark.parametrize("root", [True, False], ids=["root", "user"])
def test_killed_at_every_point_of_a_sandboxs_start_nothing_is_left(
    tmp_path: Path, way: str, root: bool
) -> None:
    if root and os.geteuid() != 0:
        pytest.skip("only root starts sandboxes as root")
    if way == "mount" and not root:
        pytest.skip("only root mounts images")
    if way == "squashfuse" and shutil.which("squashfuse") is None:
        pytest.skip("squashfuse is not installed")
    image, folder = packed(tmp_path), tmp_path / "work"
    folder.mkdir()
    become = [] if root else NOT_ROOT
    if become and os.geteuid() == 0:
        open_to(1000, folder)
    else:
        become = []
    done = subprocess.run(
        [*become, sys.executable, "-m", "tests.host.killed", image, folder, way, str(SEED), TIMES],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "common:services:.", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert traces.processes(str(tmp_path)) == []
    assert traces.mounts(str(tmp_path)) == []
    loops = subprocess.run(["losetup", "-a"], check=True, capture_output=True, text=True)
    assert str(image) not in loops.stdout


def open_to(user: int, folder: Path) -> None:
    """Give a folder to a user, who can also walk to it."""
    os.chown(folder, user, user)
    for parent in folder.parents:
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
