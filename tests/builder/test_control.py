"""The object that raises faults on purpose: in every entry, and out of every patch's reach."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym.steps import BuildSpec, CheckSpec, Edit, Patch, TarballSource
from kgym_builder.build import Builder
from kgym_builder.check import Checker
from kgym_builder.suitecache import SuiteCache
from tests.conftest import ANYWHERE, ROOT, NewRun

pytestmark = pytest.mark.anyio

LINE = "obj-y += kgym_control.o"


@pytest.fixture
def suite(tmp_path: Path) -> SuiteCache:
    return SuiteCache(tmp_path / "cache", ROOT / "configs" / "backports", origins=ANYWHERE)


@pytest.fixture
def with_makefile(fake_build: BuildSpec, tmp_path: Path) -> BuildSpec:
    """A build of the small make tree with the Makefile that the object is added to."""
    tree = shutil.copytree(ROOT / "tests" / "fakelinux", tmp_path / "tree")
    (tree / "kernel" / "Makefile").write_text("obj-y += fork.o")  # no newline at its end
    path = tmp_path / "linux.tar"
    subprocess.run(["tar", "-cf", path, "-C", tmp_path, "tree"], check=True, timeout=20)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return fake_build.model_copy(update={"source": TarballSource(url=str(path), sha256=sha256)})


def edit(file: str, original: str, replacement: str) -> Patch:
    return Patch(edits=[Edit(file=file, original=original, replacement=replacement)])


def added(path: str, line: str) -> Patch:
    return Patch(diff=f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n")


TOUCHES = {
    "its source": edit("kernel/kgym_control.c", "raised on purpose", "raised"),
    "its line": edit("kernel/Makefile", LINE, ""),
    "its place, by something else": added("kernel/kgym_control.S", ".text"),
    "its flags": edit(
        "kernel/Makefile", "obj-y += fork.o\n", "KASAN_SANITIZE_kgym_control.o := n\n"
    ),
    "its name": edit("kernel/fork.c", "int parent", 'int parent /* "kgym_control" */'),
    "its line, with the whole file": Patch(
        diff=f"--- a/kernel/Makefile\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-obj-y += fork.o\n-{LINE}\n"
    ),
}


@pytest.mark.parametrize("patch", TOUCHES.values(), ids=TOUCHES)
async def test_a_patch_that_touches_the_object_is_refused_as_its_authors_fault(
    suite: SuiteCache, new_run: NewRun, with_makefile: BuildSpec, patch: Patch
) -> None:
    with pytest.raises(UserError) as caught:
        await Builder(suite)(new_run(with_makefile.model_copy(update={"patches": [patch]})))
    assert caught.value.reason == "reserved"
    assert "kgym_control" in caught.value.message


async def test_a_check_refuses_it_as_a_build_does(
    suite: SuiteCache, new_run: NewRun, with_makefile: BuildSpec, tmp_path: Path
) -> None:
    spec = CheckSpec(
        source=with_makefile.source, config=with_makefile.config, patches=list(TOUCHES.values())
    )
    result = await Checker(suite, tmp_path / "cache")(new_run(spec))
    assert {one.details["reason"] for one in result.patches} == {"reserved"}


async def test_a_tree_without_its_makefile_is_left_as_it_is(
    suite: SuiteCache, new_run: NewRun, fake_build: BuildSpec
) -> None:
    patch = edit("kernel/Makefile", LINE, "")
    with pytest.raises(UserError) as caught:
        await Builder(suite)(new_run(fake_build.model_copy(update={"patches": [patch]})))
    assert caught.value.reason == "patch_does_not_apply"
