"""A snapshot of a local kernel tree, as a commit that a builder can fetch.

Git takes the snapshot into a repository of ours. So the tree need not be a repository, nothing is
written to it, and no program named in its configuration runs. Files ignored by its `.gitignore`,
such as build objects, are left out unless its own index has them. The commit's id depends on the
content alone, so an unchanged tree is the source that was built before. (`git stash create` would
leave out new files, write to the user's repository, and give another id each time.)
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kgym.api.steps import GitSource
from kgym.errors import UserError

_SECONDS = 600.0
_SETTINGS = (
    *("core.autocrlf=false", "core.fsmonitor=false", "core.hooksPath=/dev/null", "gc.auto=0"),
    *("core.bare=false", "core.excludesFile=/dev/null", "core.attributesFile=/dev/null"),
    *("advice.addEmbeddedRepo=false", "commit.gpgSign=false", "safe.directory=*"),
)
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "LC_ALL": "C",
    **{f"GIT_{who}_NAME": "kgym" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "kgym@localhost" for who in ("AUTHOR", "COMMITTER")},
}


def snapshot(tree: Path, store: Path) -> GitSource:
    """Return the tree as a commit of a repository below `store`, created if needed.

    Raises UserError `bad_tree` if it is not a kernel's source, or cannot be read.
    """
    _check(tree)
    refuse_embedded(tree)
    kept = store / f"{hashlib.sha256(str(tree).encode()).hexdigest()[:32]}.git"
    if not kept.exists():
        _create(kept)
    with tempfile.TemporaryDirectory(dir=kept, prefix="snapshot-") as folder:
        # Git locks the index that it writes, and a killed call would leave the lock behind. So each
        # call uses a copy; starting from the last index saves hashing unchanged files.
        own = Path(folder, "index")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(kept / "index", own)
        commit = _commit(tree, {"GIT_DIR": str(kept), "GIT_WORK_TREE": str(tree)}, own)
        own.replace(kept / "index")
    return GitSource(url=str(kept), commit=commit)


def _create(kept: Path) -> None:
    """Create an empty repository atomically: another call may do so concurrently."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="new-") as folder:
        # A worker started by root reads it as nobody.
        git(kept.parent, "init", "-q", "--bare", "--template=", "--shared=0644", f"{folder}/git")
        with contextlib.suppress(OSError):  # another call was faster
            Path(folder, "git").rename(kept)


def _commit(tree: Path, repository: dict[str, str], own: Path) -> str:
    """Commit the tree as it is, using an index of our own; return the commit."""
    place = {**repository, "GIT_INDEX_FILE": str(own)}
    git(tree, "add", "-A", ".", more=place)
    # Files that the tree's own index has although .gitignore names them: kernels have some.
    if (index := tree / ".git" / "index").is_file():
        ignored = ("ls-files", "-z", "-c", "-i", "--exclude-standard")
        listed = git(tree, *ignored, more={**place, "GIT_INDEX_FILE": str(index)})
        there = [path for path in listed.split("\0") if path and os.path.lexists(tree / path)]
        words = ("add", "-f", "--pathspec-from-file=-", "--pathspec-file-nul")
        if there:
            git(tree, "--literal-pathspecs", *words, more=place, stdin="\0".join(there))
    written = git(tree, "write-tree", more=place).strip()
    when = {f"GIT_{who}_DATE": "1970-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    commit = git(tree, "commit-tree", "-m", "snapshot", written, more={**place, **when}).strip()
    # A branch per snapshot, so that builders can fetch it, and Git does not collect it.
    git(tree, "update-ref", f"refs/heads/{commit}", commit, more=place)
    return commit


def git(folder: Path, *words: str, more: dict[str, str] | None = None, stdin: str = "") -> str:
    """Run Git in a folder without any user or system configuration; return its output.

    Raises UserError `bad_tree` with its error message.
    """
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    names = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *settings, *words],
            cwd=folder,
            env={**names, **_ENVIRONMENT, **(more or {})},
            input=stdin.encode(errors="surrogateescape"),
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise UserError("bad_tree", f"{folder}: `git {words[0]}`: {message}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError("bad_tree", f"{folder}: `git {words[0]}` took too long") from error
    return done.stdout.decode(errors="surrogateescape")


def embedded(tree: Path) -> Iterator[Path]:
    """Yield each `.git` below the tree's top: it makes its folder a repository within the tree."""
    for parent, folders, files in os.walk(tree):
        if ".git" in (*folders, *files) and parent != str(tree):
            yield Path(parent, ".git")
        folders[:] = [name for name in folders if name != ".git"]


def refuse_embedded(tree: Path) -> None:
    """Raise UserError `bad_tree` if the tree contains another repository."""
    # `git add`, `status` and `diff` run `git status` in it, with filters of its own configuration:
    # programs of whoever wrote the tree. No setting or option of ours prevents that.
    if inner := next(embedded(tree), None):
        message = f"{inner.parent} is a repository within {tree}: move it away, or remove {inner}"
        raise UserError("bad_tree", message)


def _check(tree: Path) -> None:
    """Refuse a folder that is not a kernel: an untrusted bundle must not copy private folders."""
    try:
        makefile = (tree / "Makefile").read_bytes()[:4096]
        if b"PATCHLEVEL" in makefile and (tree / "Kconfig").is_file():
            return
    except OSError as error:
        raise UserError("bad_tree", f"{tree} is not a kernel's source: {error}") from error
    raise UserError("bad_tree", f"{tree} is not a kernel's source: no Makefile with a version")
