"""The kernel's own tests: their table, and how a build makes them."""

import subprocess
import tarfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from kgym.api.steps import BuildArtifact, BuildResult, Edit, Patch
from kgym.bugs import bundle, shipped
from kgym_builder.build.kernel_tests import KUNIT, SELFTESTS, table
from tests.builder.conftest import FakeLinux

TEST = f"{SELFTESTS}/core/close_range_test.c"
OPENS = Edit(file="fs/open.c", original="return -1;", replacement="return -2;")


def test_the_shipped_bugs_have_rows() -> None:
    known = [pattern for row in table() for pattern in row.files]
    # The tree has no tests of keys; the only one of io_uring needs two network namespaces.
    known += ["security/keys/*", "io_uring/*"]
    for name in shipped.names():
        for path in bundle.load(name).file.files:
            assert any(fnmatchcase(path, pattern) for pattern in known), path


def test_programs_of_different_folders_have_different_names() -> None:
    folders: dict[str, str] = {}
    for row in table():
        for line in (*row.run, *row.needs):
            assert folders.setdefault(line.split()[0], row.folder) == row.folder, line


def test_the_source_has_all_of_the_table(kernel_source: Path) -> None:
    source, rows = kernel_source, table()
    suites = {suite for row in rows if row.folder == KUNIT for suite in row.run}
    for row in rows:
        for program in (line.split()[0] for line in (*row.run, *row.needs)):
            name = program if program.endswith(".sh") else f"{program.removesuffix('_64')}.c"
            assert program in suites or (source / SELFTESTS / row.folder / name).is_file(), program
        for pattern in row.files:
            assert list(source.glob(pattern)), pattern
    folders = {str(source / pattern.partition("/")[0]) for row in rows for pattern in row.files}
    argv = ["grep", "-rhoP", r'\.name = "\K[^"]+', "--include=*test*.c", "--include=*kunit*.c"]
    printed = subprocess.run([*argv, *folders], check=True, capture_output=True, timeout=100)
    assert suites <= set(printed.stdout.decode().splitlines())


async def built(linux: FakeLinux, tmp_path: Path, *edits: Edit) -> tuple[BuildResult, list[str]]:
    """Build tests for a patch; return the result, and what the programs print."""
    patch = Patch(name="fix", edits=[OPENS, *edits])
    more = {"patches": [patch], "review": ["fix"], "kernel_tests": True}
    run = linux.new_run(linux.spec.model_copy(update=more))
    result = await linux.builder(run)
    printed = []
    for artifact in run.artifacts:
        if artifact.name == BuildArtifact.TESTS:
            await run.storage.get(artifact.key, tmp_path / "tests.tar")
            with tarfile.open(tmp_path / "tests.tar") as tar:
                names = tar.getnames()
                tar.extractall(tmp_path, filter="data")
            for name in names:
                (tmp_path / name).chmod(0o755)
                done = subprocess.run(
                    [tmp_path / name], capture_output=True, timeout=20, check=True
                )
                printed.append(done.stdout.decode())
    return result, printed


@pytest.mark.anyio
@pytest.mark.thorough
async def test_tests_of_changed_files_are_built(linux: FakeLinux, tmp_path: Path) -> None:
    result, printed = await built(linux, tmp_path)
    assert printed == ["ok 1 made\n"]
    assert result.kernel_tests is not None
    assert result.kernel_tests.tests == ["core/close_range_test"]
    assert result.kernel_tests.left_out == [
        f"openat2/{name}: it does not build: this source has no such folder"
        for name in ("openat2_test", "resolve_test")
    ]


@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.parametrize(
    "edit",
    [
        Edit(file=TEST, original='"ok 1', replacement='"ok 1 forged'),
        Edit(file=TEST, original="#include <linux/fork.h>", replacement="#error"),
        Edit(file=f"{SELFTESTS}/core/Makefile", original="CC := gcc", replacement="CC := false"),
        Edit(file="include/uapi/linux/fork.h", original='"made"', replacement='"forged"'),
    ],
)
async def test_no_patch_changes_the_tests(linux: FakeLinux, tmp_path: Path, edit: Edit) -> None:
    _, printed = await built(linux, tmp_path, edit)
    assert printed == ["ok 1 made\n"]


@pytest.mark.anyio
@pytest.mark.thorough
async def test_a_build_without_them_has_none(linux: FakeLinux) -> None:
    assert (await linux.build()).kernel_tests is None
