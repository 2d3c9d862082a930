"""Attacks by a local tree's own Git data: settings, attributes, hooks, and repositories within."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgym.bugs import tree_changes
from kgym.bugs.tree_snapshot import snapshot
from kgym.errors import UserError
from tests.conftest import ROOT
from tests.refused import refused

pytestmark = pytest.mark.attack

# Programs that Git runs if its configuration, or a submodule's, names them.
_NAMES = (
    "filter.evil.clean filter.evil.smudge filter.evil.process diff.evil.textconv diff.evil.command"
    " diff.external merge.evil.driver core.fsmonitor core.pager core.editor core.sshCommand"
    " core.alternateRefsCommand alias.add gpg.program credential.helper uploadpack.packObjectsHook"
)
SETTINGS = _NAMES.split()
HOOKS = ("post-index-change", "pre-commit", "reference-transaction", "fsmonitor-watchman")


def run(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgSign=false")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True)


class Hostile:
    """A kernel's tree as a repository; each program that its Git data names leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._mark, self._store = folder / "linux", folder / "mark", folder / "store"
        shutil.copytree(ROOT / "tests/fakelinux", self.tree)
        self.repository(self.tree)

    @property
    def script(self) -> str:
        return f"touch {self._mark}"

    def repository(self, folder: Path) -> None:
        """Make a repository with one commit."""
        folder.mkdir(exist_ok=True)
        (folder / "file.c").write_text("int x;\n")
        (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
        run(folder, "init", "-q", ".")
        run(folder, "add", "-A", "-f", ".")
        run(folder, "commit", "-q", "-m", "x")

    def value(self, setting: str) -> str:
        """Return what runs the script, as this setting's value."""
        begin = "!" if setting in {"alias.add", "credential.helper"} else ""
        return f"{begin}{self.script}; cat"

    def change(self) -> None:
        """Change all files of this name, so that Git reads them again."""
        for path in self.tree.rglob("file.c"):
            path.write_text(f"{path.read_text()}int y;\n")

    def looks(self) -> Iterator[str]:
        """Do what commands do with a local tree; yield what they say against it."""
        snaps: list[Callable[[], object]] = [lambda: snapshot(self.tree, self._store)] * 2
        for look in (*snaps, self._changes):
            self.change()
            try:
                look()
            except UserError as error:
                yield error.message
            assert not self._mark.exists(), look

    def _changes(self) -> None:
        if (source := tree_changes.source_tree(self.tree)) is not None:
            tree_changes.changes(source)
            tree_changes.unknown_files(source)


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    return Hostile(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("within", [".", "tools/inner"])
def test_a_trees_settings_run_nothing(hostile: Hostile, setting: str, within: str) -> None:
    folder = hostile.tree / within
    if within != ".":
        folder.parent.mkdir(exist_ok=True)
        hostile.repository(folder)
        # Git also looks into submodules that a tree's own index names.
        run(hostile.tree, "add", "-A", "-f", ".")
    run(folder, "config", setting, hostile.value(setting))
    complaints = list(hostile.looks())
    assert all("tools/inner is a repository within" in words for words in complaints)
    assert len(complaints) == (0 if within == "." else 3)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_trees_hooks_run_nothing(hostile: Hostile, hook: str) -> None:
    path = hostile.tree / ".git" / "hooks" / hook
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{hostile.script}\n")
    path.chmod(0o755)
    run(hostile.tree, "config", "core.fsmonitor", ".git/hooks/fsmonitor-watchman")
    assert list(hostile.looks()) == []


def test_included_settings_and_templates_run_nothing(hostile: Hostile, tmp_path: Path) -> None:
    for name in SETTINGS:
        run(tmp_path, "config", "-f", "more", name, hostile.value(name))
    run(hostile.tree, "config", "include.path", str(tmp_path / "more"))
    run(hostile.tree, "config", "init.templateDir", str(tmp_path))
    assert list(hostile.looks()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_repository_within_is_named(hostile: Hostile, tmp_path: Path, kind: str) -> None:
    inner = hostile.tree / "drivers" / ".git"
    inner.parent.mkdir(exist_ok=True)
    if kind == "folder":
        inner.mkdir()
    elif kind == "file":
        inner.write_text(f"gitdir: {tmp_path}\n")
    else:
        inner.symlink_to(tmp_path)
    with refused("bad_tree", "drivers is a repository within"):
        snapshot(hostile.tree, tmp_path / "store")


def test_a_worktree_elsewhere_gives_none_of_its_changes(hostile: Hostile, tmp_path: Path) -> None:
    # The tree lies in a repository of its user's, with changes that nobody has seen.
    hostile.repository(tmp_path)
    (tmp_path / "file.c").write_text("the secret\n")
    for place in (tmp_path, tmp_path.parent, Path("/")):
        run(hostile.tree, "config", "core.worktree", str(place))
        with contextlib.suppress(UserError):
            source = tree_changes.source_tree(hostile.tree)
            assert source is None or "the secret" not in tree_changes.changes(source)
