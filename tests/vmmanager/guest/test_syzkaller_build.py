"""docker/syzkaller.sh: syzkaller's binaries by commit, each built once."""

import os
import subprocess
from pathlib import Path

import pytest

from kgym.host.detection import syzkallers
from tests.conftest import ROOT

COMMIT = "3ab38479ab60b50d5b27332bd001c78382877ecd"
# Stands in for the engine: reads the Dockerfile, notes its words, and gives out what a build left.
DOCKER = Path(__file__).with_name("docker_stand_in.sh").read_text()
BOTH = "syz-execprog syz-executor"


class Build:
    """Calls of the script, with the stand-in."""

    def __init__(self, notes: Path) -> None:
        self.folder = notes / "binaries"
        self._notes = notes
        self._programs = notes / "programs"
        self._programs.mkdir()
        (self._programs / "docker").write_text(DOCKER)
        (self._programs / "docker").chmod(0o755)

    def __call__(self, *commits: str, leaves: str = BOTH) -> subprocess.CompletedProcess[str]:
        path = f"{self._programs}:{os.environ['PATH']}"
        return subprocess.run(
            [ROOT / "docker" / "syzkaller.sh", self.folder, *commits],
            env={"PATH": path, "NOTES": str(self._notes), "LEAVES": leaves},
            capture_output=True,
            check=False,
            text=True,
            timeout=20,
        )

    @property
    def builds(self) -> list[str]:
        """The engine's command lines that build."""
        calls = self._notes / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line for line in lines if line.startswith("build ")]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_a_commit_is_built_once(build: Build) -> None:
    assert build(COMMIT).returncode == 0
    assert set(syzkallers(build.folder)) == {COMMIT}
    (call,) = build.builds
    assert f"--build-arg COMMIT={COMMIT}" in call
    assert build(COMMIT).returncode == 0
    assert len(build.builds) == 1


def test_without_a_commit_the_pinned_one_becomes_the_default(build: Build) -> None:
    done = build()
    assert done.returncode == 0, done.stderr
    folders = syzkallers(build.folder)
    assert len(folders) == 2
    (pinned,) = set(folders) - {"default"}
    program = folders["default"] / "syz-executor"
    assert program.resolve() == (folders[pinned] / "syz-executor").resolve()


def test_a_build_that_leaves_half_is_none(build: Build) -> None:
    assert build(COMMIT, leaves="syz-execprog").returncode != 0
    assert list(build.folder.iterdir()) == []


@pytest.mark.parametrize("commit", ["main", COMMIT[:12], f"{COMMIT[:-1]};", "../../etc"])
def test_what_is_no_commit_id_is_refused(build: Build, commit: str) -> None:
    assert build(commit).returncode == 2
    assert build.builds == []
