"""The changes made in a bug's source tree, as a patch; `kgym bug source` writes such trees.

Of the tree's own Git configuration, only two values are read. Git compares in a repository of ours
that borrows the tree's objects and index: an agent may have written the tree's attributes and
hooks, and they must not run programs here.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kgym.bugs.tree_snapshot import git, refuse_embedded
from kgym.errors import UserError
from kgym.source import diff_text

# Values in a tree's configuration: its bug, and the commit before the changes.
BUG, BASE = "kgym.bug", "kgym.base"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A tree to work in."""

    folder: Path
    bug: str | None
    """The name or folder of its bug, if the tree records it."""
    base: str
    """The commit that changes are relative to."""


def remember(folder: Path, bug: str) -> None:
    """Record in the tree which bug it belongs to, and its current commit as the base of changes."""
    git(folder, "config", "--local", BUG, bug)
    git(folder, "config", "--local", BASE, git(folder, "rev-parse", "HEAD").strip())


def source_tree(folder: Path) -> SourceTree | None:
    """Return the tree that contains a folder; None if it is not in a Git repository."""
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel").removesuffix("\n"))
        here = folder.resolve()
        # `core.worktree` may name any folder of this machine, whose files would be the changes.
        if top != next(parent for parent in (here, *here.parents) if (parent / ".git").exists()):
            return None
        base = _value(top, BASE) or "HEAD"
        base = git(top, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").strip()
    except (UserError, OSError, StopIteration):
        return None
    return SourceTree(top, _value(top, BUG), base)


def changes(tree: SourceTree) -> str:
    """Return the diff from the base to the tracked files as they are now.

    It includes commits, staged and unstaged changes. Raises UserError `bad_tree`, or those of
    `kgym.source.diff_text`.
    """
    refuse_embedded(tree.folder)
    with tempfile.TemporaryDirectory(prefix="kgym-tree-") as own:
        place = _borrowed(tree, Path(own))
        # Plain output whatever the configuration says, and no external programs.
        words = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/")
        diff = git(tree.folder, "diff", *words, "--dst-prefix=b/", tree.base, more=place)
    return diff_text.decode(diff.encode(errors="surrogateescape"), str(tree.folder))


def unknown_files(tree: SourceTree) -> list[str]:
    """Return the paths of untracked files: they are not part of `changes`."""
    with tempfile.TemporaryDirectory(prefix="kgym-tree-") as own:
        place = _borrowed(tree, Path(own))
        words = ("-z", "--others", "--exclude-standard", "--directory")
        listed = git(tree.folder, "ls-files", *words, more=place)
    return [path for path in listed.split("\0") if path]


def _borrowed(tree: SourceTree, own: Path) -> dict[str, str]:
    """Return the environment of a repository in `own` with the tree's objects, index and files."""
    # No template: it could install hooks.
    git(own, "init", "-q", "--bare", "--template=", ".")
    names = ("--git-path", "objects", "--git-path", "index")
    objects, index = git(tree.folder, "rev-parse", *names).splitlines()
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_text(f"{tree.folder / objects}\n")
    if (tree.folder / index).is_file():
        shutil.copy2(tree.folder / index, own / "index")
    return {"GIT_DIR": str(own), "GIT_WORK_TREE": str(tree.folder)}


def _value(folder: Path, name: str) -> str | None:
    try:
        return git(folder, "config", "--local", "--get", name).removesuffix("\n") or None
    except UserError:
        return None
