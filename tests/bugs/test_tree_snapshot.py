"""Snapshots of a kernel tree of this machine."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgym.bugs.tree_snapshot import git, snapshot
from tests.conftest import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tests/fakelinux", tmp_path / "linux")
    return tmp_path / "linux"


def test_snapshots_that_are_taken_at_once_are_the_same_commit(tree: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: snapshot(tree, tmp_path / "store"), range(4)))
    assert len(set(taken)) == 1


def test_what_a_killed_call_left_is_in_nobodys_way(tree: Path, tmp_path: Path) -> None:
    first = snapshot(tree, tmp_path / "store")
    kept = Path(first.url)
    (kept / "index.lock").touch()  # git's own, while it writes the index
    (kept / "snapshot-killed").mkdir()
    with (tree / "kernel/fork.c").open("a") as file:
        file.write("/* edited */\n")
    second = snapshot(tree, tmp_path / "store")
    assert (second.url, second.commit == first.commit) == (first.url, False)
    names = git(
        tree,
        "diff-tree",
        "-r",
        "--name-only",
        first.commit,
        second.commit,
        more={"GIT_DIR": first.url},
    )
    assert names.split() == ["kernel/fork.c"]
