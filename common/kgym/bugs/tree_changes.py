"""What somebody has changed in a bug's source tree, as a patch; `kgym bug source` writes trees.

The tree's own configuration is only read for two values. Git compares by a repository of ours
that borrows the tree's objects and index: whoever works in the tree cannot have a program run
here by its attributes or hooks.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kgym.bugs.tree_snapshot import git
from kgym.errors import UserError
from kgym.source import diff_text

# What a tree's configuration says: which bug it is of, and the commit before the changes.
BUG, BASE = "kgym.bug", "kgym.base"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A tree to work in."""

    folder: Path
    bug: str | None
    """The name or folder of its bug, where the tree says it."""
    base: str
    """The commit from which changes count."""


def remember(folder: Path, bug: str) -> None:
    """Let the tree say which bug it is of, and that changes count from its commit of now."""
    git(folder, "config", "--local", BUG, bug)
    git(folder, "config", "--local", BASE, git(folder, "rev-parse", "HEAD").strip())


def source_tree(folder: Path) -> SourceTree | None:
    """Return the tree that a folder lies in; None where that is no Git repository."""
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel").removesuffix("\n"))
        base = _value(top, BASE) or "HEAD"
        base = git(top, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").strip()
    except (UserError, OSError):
        return None
    return SourceTree(top, _value(top, BUG), base)


def changes(tree: SourceTree) -> str:
    """Return the diff from the base to the files as they are, of those that Git knows.

    It holds commits, what is staged, and what is not. Raises UserError `bad_tree`, or those of
    `kgym.source.diff_text`.
    """
    with tempfile.TemporaryDirectory(prefix="kgym-tree-") as own:
        place = _borrowed(tree, Path(own))
        words = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/")
        diff = git(tree.folder, "diff", *words, "--dst-prefix=b/", tree.base, more=place)
    return diff_text.decode(diff.encode(errors="surrogateescape"), str(tree.folder))


def unknown_files(tree: SourceTree) -> list[str]:
    """Return the paths of new files that Git does not know: they are no part of `changes`."""
    with tempfile.TemporaryDirectory(prefix="kgym-tree-") as own:
        place = _borrowed(tree, Path(own))
        words = ("-z", "--others", "--exclude-standard", "--directory")
        listed = git(tree.folder, "ls-files", *words, more=place)
    return [path for path in listed.split("\0") if path]


def _borrowed(tree: SourceTree, own: Path) -> dict[str, str]:
    """Return the environment of a repository in `own` with the tree's objects, index and files."""
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
