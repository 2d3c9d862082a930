"""`kgym bug source`: the tree as builds see it, to work in."""

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kgym.api.steps import TarballSource
from tests.cli.conftest import Kgym
from tests.cli.test_check import bundle as bundle  # noqa: PLC0414 - a fixture
from tests.conftest import ROOT

pytestmark = pytest.mark.thorough


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-c", "safe.directory=*", "-C", folder, *words]
    return subprocess.run(argv, check=True, text=True, capture_output=True, timeout=60).stdout


@pytest.mark.usefixtures("platform")
def test_the_tree_is_a_repository_whose_diff_is_a_patch(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    done = kgym("bug", "source", bundle, tree, "--json")
    assert done.status == 0, done.err
    # One commit: a last one with the bug would show the fix, reversed.
    assert git(tree, "rev-list", "--all") == git(tree, "rev-parse", "HEAD")
    assert git(tree, "status", "--porcelain") == ""
    objects = git(tree, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    assert len(objects.split()) == len(git(tree, "rev-list", "--objects", "HEAD").splitlines())
    watch, other = tree / "kernel/watch_queue.c", tree / "kernel/fork.c"
    assert watch.stat().st_mtime == other.stat().st_mtime
    assert "type >= 100" in watch.read_text()
    watch.write_text(watch.read_text().replace("type >= 100", "type >= WATCH_TYPE__NR"))
    patch = tmp_path / "my.patch"
    patch.write_text(git(tree, "diff"))
    checked = kgym("check", bundle, patch)
    assert checked.status == 0, checked.err
    again = kgym("bug", "source", bundle, tree)
    assert (again.status, "name a new folder" in again.err) == (2, True)


def test_the_kernels_repository_is_shared_by_all_its_bugs(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    text = (bundle / "bug.toml").read_text()
    made = []
    for limit in (100, 101):
        (bundle / "bug.toml").write_text(text.replace("type >= 100", f"type >= {limit}"))
        done = kgym("bug", "source", bundle, tmp_path / str(limit))
        assert done.status == 0, done.err
        made.append("Git repository of the kernel" in done.err)
        watch = tmp_path / str(limit) / "kernel/watch_queue.c"
        assert f"type >= {limit}" in watch.read_text()
    assert made == [True, False]


def test_a_source_that_cannot_be_had_leaves_no_folder(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    text = (bundle / "bug.toml").read_text()
    (bundle / "bug.toml").write_text(text.replace("type >= WATCH_TYPE__NR", "not there"))
    done = kgym("bug", "source", bundle, tmp_path / "tree")
    assert (done.status, "occurs 0 times" in done.err) == (2, True), done.err
    assert not (tmp_path / "tree").exists()


@pytest.mark.usefixtures("platform")
def test_run_kernel_knows_the_tree_and_really_compiles_it(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "source"
    done = kgym("bug", "source", bundle, tree)
    assert done.status == 0, done.err
    watch = tree / "kernel/watch_queue.c"
    watch.write_text(watch.read_text().replace("type >= 100", "kind >= 2"))
    done = kgym("run-kernel", "--tree", tree)
    assert (done.status, done.out.splitlines()[0]) == (
        1,
        "does not compile: kernel/watch_queue.c:10: 'kind' undeclared (first use in this function)",
    )
    assert "<compiler>\nkernel/watch_queue.c: In function" in done.out


@pytest.mark.attack
def test_repositories_within_the_source_are_left_out(
    kgym: Kgym, bundle: Path, fake_source: TarballSource, tmp_path: Path
) -> None:
    tree, mark = tmp_path / "linux", tmp_path / "mark"
    shutil.copytree(ROOT / "tests/fakelinux", tree)
    inner = tree / "tools" / "inner"
    inner.mkdir(parents=True)
    (inner / ".gitattributes").write_text("* filter=evil\n")
    git(inner, "init", "-q", ".")
    git(inner, "add", ".")
    git(inner, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "x")
    for kind in ("clean", "process"):
        git(inner, "config", f"filter.evil.{kind}", f"touch {mark}; cat")
    (inner / ".gitattributes").write_text("* filter=evil\n# changed\n")
    packed = tmp_path / "linux.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(tree, "linux")
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    text = (bundle / "bug.toml").read_text()
    text = text.replace(fake_source.url, str(packed)).replace(str(fake_source.sha256), digest)
    (bundle / "bug.toml").write_text(text)
    done = kgym("bug", "source", bundle, tmp_path / "tree")
    assert done.status == 0, done.err
    assert not mark.exists()
    written = {
        path.relative_to(tmp_path / "tree").as_posix() for path in tmp_path.glob("tree/**/*")
    }
    assert "tools/inner/.gitattributes" in written
    assert "tools/inner/.git" not in written
