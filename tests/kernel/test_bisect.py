"""A bisection of a synthetic history of a real tree: kernels from near entries, real VMs."""

import os
import subprocess
from pathlib import Path

import pytest

from kgym.bugs import bundle
from tests.conftest import kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

BUG = "watch-queue-filter"
# Always the same, so that commits are, and the next turn finds its kernels.
WHO = {"NAME": "t", "EMAIL": "t@localhost", "DATE": "2026-01-01T00:00:00Z"}


def git(folder: Path, *words: str) -> str:
    identity = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in WHO.items()
    }
    command = ["git", "-C", folder, "-c", "safe.directory=*", "-c", "gc.auto=0", *words]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **identity},
    )
    return done.stdout.strip()


def committed(folder: Path, message: str) -> str:
    git(folder, "commit", "-q", "-a", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def commented(folder: Path, file: str) -> str:
    """Commit a comment more in a file."""
    path = folder / file
    path.write_text(f"{path.read_text()}\n/* A comment. */\n")
    return committed(folder, f"{file}: a comment")


def swapped(folder: Path, texts: list[tuple[str, str, str]]) -> None:
    """Replace texts, each by file, the old text and the new one."""
    for file, old, new in texts:
        path = folder / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))


def history(folder: Path) -> tuple[str, str, str]:
    """Lay a history on the tree without its bug; return its first, the cause, and its last one.

    The cause is on a branch that is merged. Beside it a commit does not compile.
    """
    (regress,) = bundle.load(BUG).build.patches
    swapped(folder, [(edit.file, edit.replacement, edit.original) for edit in regress.edits])
    git(folder, "commit", "-q", "-a", "--amend", "--reset-author", "-m", "without the bug")
    good = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "-q", "-b", "side")
    commented(folder, "lib/kasprintf.c")
    swapped(folder, [(edit.file, edit.original, edit.replacement) for edit in regress.edits])
    cause = committed(folder, "watch_queue: the types are bytes")
    git(folder, "checkout", "-q", "-b", "line", good)
    path = folder / "lib" / "argv_split.c"
    text = path.read_text()
    path.write_text(f"{text}\nnonsense\n")
    committed(folder, "lib: does not compile")
    path.write_text(text)
    committed(folder, "lib: compiles again")
    git(folder, "merge", "-q", "--no-edit", "-m", "merge", "side")
    return good, cause, commented(folder, "lib/cmdline.c")


@pytest.mark.exhaustive
def test_the_commit_that_brought_a_bug_is_found_on_real_kernels(tmp_path: Path) -> None:
    linux = tmp_path / "linux"
    status, _ = kgym("bug", "source", BUG, linux)
    assert status == 0
    good, cause, bad = history(linux)
    words = ("bisect", BUG, "--repo", linux, "--good", good, "--bad", bad)
    status, answer = kgym(*words, "--confidence", 0.9, "--calibrate", 5)
    assert (status, answer["outcome"]) == (0, "found"), answer
    assert [culprit["commit"] for culprit in answer["culprits"]] == [cause]
    assert answer["confidence"] >= 0.9
    assert answer["commits"] == 6
    assert answer["tests"] <= 7
    # The same line goes by the jobs that there are.
    again = kgym(*words, "--confidence", 0.9, "--calibrate", 5)[1]
    assert {**again, "seconds": 0} == {**answer, "seconds": 0}
