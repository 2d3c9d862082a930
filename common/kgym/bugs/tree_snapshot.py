"""A kernel tree of this machine as it is now, as a commit that a builder can fetch.

Git takes the snapshot, into a repository of our own: so the tree need not be one, nothing is
written to it, and no program that its configuration names is run. What its `.gitignore` leaves
out, as the objects of a build, is not taken, unless its own index has it. A commit's id depends
on the content alone: a tree that has not changed is the source that was built before.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kgym.api.steps import GitSource
from kgym.errors import UserError

_SECONDS = 600.0
_SETTINGS = (
    *("core.autocrlf=false", "core.fsmonitor=false", "core.hooksPath=/dev/null", "gc.auto=0"),
    *("core.bare=false", "core.excludesFile=/dev/null", "core.attributesFile=/dev/null"),
    *("advice.addEmbeddedRepo=false", "commit.gpgSign=false", "safe.directory=*"),
)
_NOBODY = {"NAME": "kgym", "EMAIL": "kgym@localhost"}
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "LC_ALL": "C",
    **{
        f"GIT_{who}_{key}": value
        for who in ("AUTHOR", "COMMITTER")
        for key, value in _NOBODY.items()
    },
}


def snapshot(tree: Path, store: Path) -> GitSource:
    """Return the tree as a commit of a repository below `store`, which is made if need be.

    Raises UserError `bad_tree` for what is no kernel's source, or cannot be read.
    """
    _check(tree)
    kept = store / f"{hashlib.sha256(str(tree).encode()).hexdigest()[:32]}.git"
    if not kept.exists():
        _create(kept)
    with tempfile.TemporaryDirectory(dir=kept, prefix="snapshot-") as folder:
        # Git locks the index that it writes: calls at the same time, and one that was killed,
        # must not be in each other's way. The last one's tells what has not changed since.
        own = Path(folder, "index")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(kept / "index", own)
        commit = _commit(tree, {"GIT_DIR": str(kept), "GIT_WORK_TREE": str(tree)}, own)
        own.replace(kept / "index")
    return GitSource(url=str(kept), commit=commit)


def _create(kept: Path) -> None:
    """Make an empty repository, in one step: another call may do so at the same time."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="new-") as folder:
        # A root's worker reads it as nobody.
        git(kept.parent, "init", "-q", "--bare", "--template=", "--shared=0644", f"{folder}/git")
        with contextlib.suppress(OSError):  # it is there by now
            Path(folder, "git").rename(kept)


def _commit(tree: Path, repository: dict[str, str], own: Path) -> str:
    """Commit the tree as it is, by an index of our own; return the commit."""
    place = {**repository, "GIT_INDEX_FILE": str(own)}
    git(tree, "add", "-A", ".", more=place)
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
    git(tree, "update-ref", f"refs/heads/{commit}", commit, more=place)
    return commit


def git(folder: Path, *words: str, more: dict[str, str] | None = None, stdin: str = "") -> str:
    """Run git in a folder as nobody has configured it; return what it prints.

    Raises UserError `bad_tree` with its words.
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


def _check(tree: Path) -> None:
    """Refuse what is no kernel: another's bundle must not take any folder of ours along."""
    try:
        makefile = (tree / "Makefile").read_bytes()[:4096]
        if b"PATCHLEVEL" in makefile and (tree / "Kconfig").is_file():
            return
    except OSError as error:
        raise UserError("bad_tree", f"{tree} is no kernel's source: {error}") from error
    raise UserError("bad_tree", f"{tree} is no kernel's source: no Makefile with a version there")
