"""Backports: the shipped ones, and a job's own beside them, as part of the kernel's source."""

import difflib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kgym.api.steps import (
    Backport,
    BuildResult,
    BuildSpec,
    CheckSpec,
    Edit,
    Patch,
    SourceSpec,
    When,
)
from kgym.errors import UserError
from kgym_builder.build.build_step import Builder
from kgym_builder.check.check_step import Checker
from kgym_builder.source.source_step import SourceReader
from kgym_builder.suitecache import backports
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_builder.toolchains.toolchain import Toolchain
from tests.builder.conftest import FakeLinux
from tests.conftest import ANYWHERE, ROOT, NewRun
from tests.refused import refused

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

FILE = "lib/string.c"
OLD, NEW = "\twhile (text[n])\n", "\twhile (text[n] != 0)\n"
GCC_12 = Toolchain("gcc", "gcc", (), "gcc 12.2.0", "12.2.0")


def own(original: str = OLD, replacement: str = NEW, **more: object) -> Backport:
    edits = [Edit(file=FILE, original=original, replacement=replacement)]
    return Backport(name="loop", edits=edits, **more)  # type: ignore[arg-type]


def as_diff(original: str = OLD, replacement: str = NEW, path: str = FILE) -> Backport:
    text = (ROOT / "tests/fakelinux" / FILE).read_text()
    changed = text.replace(original, replacement)
    assert changed != text
    lines = (text.splitlines(keepends=True), changed.splitlines(keepends=True))
    return Backport(name="loop", diff="".join(difflib.unified_diff(*lines, path, path)))


def with_own(spec: BuildSpec, *of_the_job: Backport) -> BuildSpec:
    return spec.model_copy(update={"backports": list(of_the_job)})


@pytest.mark.parametrize(
    "change", [own(), as_diff(), as_diff(path=f"linux/{FILE}")], ids=["edits", "diff", "misplaced"]
)
async def test_a_job_brings_its_own(linux: FakeLinux, change: Backport) -> None:
    without = await linux.build()
    first = await linux.build(with_own(linux.spec, change))
    assert without.backports == []
    (name,) = first.backports
    assert name.startswith("loop@")
    assert len({without.tree, first.tree}) == len({without.source_tree, first.source_tree}) == 2
    again = await linux.build(with_own(linux.spec, change))
    assert (again.tree, again.backports, again.tree_cached) == (first.tree, [name], True)


async def test_checks_and_readable_sources_have_them_too(
    suite: SuiteCache, tmp_path: Path, new_run: NewRun, fake_build: BuildSpec
) -> None:
    built: BuildResult = await Builder(suite)(new_run(with_own(fake_build, own())))
    patch = Patch(edits=[Edit(file=FILE, original=NEW, replacement="\twhile (text[n] > 0)\n")])
    spec = CheckSpec(
        source=fake_build.source, config=fake_build.config, backports=[own()], patches=[patch]
    )
    checked = await Checker(suite, tmp_path / "cache")(new_run(spec))
    assert (checked.tree, checked.patches[0].outcome) == (built.tree, "compiles")
    read = SourceSpec(source=fake_build.source, backports=[own()], patches=[patch])
    seen = await SourceReader(suite)(new_run(read))
    assert (seen.source_tree, seen.backports) == (built.source_tree, built.backports)


async def test_two_texts_of_one_name_are_two_kernels(linux: FakeLinux) -> None:
    first = await linux.build(with_own(linux.spec, own()))
    second = await linux.build(with_own(linux.spec, own(replacement="\twhile (0 != text[n])\n")))
    assert first.backports != second.backports
    assert len({first.tree, second.tree}) == len({first.source_tree, second.source_tree}) == 2


@pytest.mark.parametrize(
    "change",
    [
        own(when=When(kernel_before="6.1")),
        own(when=When(kernel_from="6.1.1")),
        own(when=When(compiler="clang")),
        own(when=When(compiler_from="200")),
        own(when=When(compiler_before="3.4")),
        own(original="\tn = 1;\n", replacement=OLD),  # it is there already
        own(original="\twhile (text[n])\n", replacement="\twhile (text[n])\n\t\tn++;\n"),
        Backport(
            name="loop",
            diff=f"--- a/{FILE}\n+++ b/{FILE}\n@@ -7,2 +7,2 @@\n-\tif (*text)\n+{OLD} \t\tn++;\n",
        ),
    ],
)
async def test_what_does_not_fit_is_left_out(linux: FakeLinux, change: Backport) -> None:
    without = await linux.build()
    result = await linux.build(with_own(linux.spec, change))
    assert (result.backports, result.tree) == ([], without.tree)


async def test_a_jobs_own_that_does_not_apply_says_where(linux: FakeLinux) -> None:
    for change in (own(original="\tno such line\n"), own(original="n")):
        with refused("patch_does_not_apply") as caught:
            await linux.build(with_own(linux.spec, change))
        assert "backport loop" in caught.value.message
        assert FILE in caught.value.message


async def test_a_job_replaces_one(tmp_path: Path, new_run: NewRun, fake_build: BuildSpec) -> None:
    """A job's own backport replaces a shipped one of the same name."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    edit = f"[[edits]]\nfile = '{FILE}'\noriginal = '''\n{OLD}'''\nreplacement = '''\n{NEW}'''\n"
    (folder / "loop.toml").write_text(f"summary = 'x'\nreferences = ['y']\n[when]\n{edit}")
    builder = Builder(SuiteCache(tmp_path / "other", folder, origins=ANYWHERE))
    assert (await builder(new_run(fake_build))).backports == ["loop"]
    other = own(replacement="\twhile (0 != text[n])\n")
    (name,) = (await builder(new_run(with_own(fake_build, other)))).backports
    assert name.startswith("loop@")


def test_two_of_one_name_and_odd_names_are_refused(fake_build: BuildSpec) -> None:
    spec = fake_build.model_dump()
    for wrong in ([own(), own()], [own().model_copy(update={"name": "../x"})]):
        with pytest.raises(ValidationError):
            BuildSpec.model_validate(spec | {"backports": [each.model_dump() for each in wrong]})


@pytest.mark.attack
async def test_a_backport_cannot_change_the_object_that_raises_faults(linux: FakeLinux) -> None:
    diff = "--- /dev/null\n+++ b/kernel/kgym_control.c\n@@ -0,0 +1 @@\n+int x;\n"
    with pytest.raises(UserError):
        await linux.build(with_own(linux.spec, Backport(name="loop", diff=diff)))


VERSIONS = st.tuples(*[st.integers(0, 30)] * 3)


@given(kernel=VERSIONS, first=VERSIONS, end=VERSIONS)
def test_versions_are_compared_as_numbers(
    kernel: tuple[int, ...], first: tuple[int, ...], end: tuple[int, ...]
) -> None:
    def text(version: tuple[int, ...]) -> str:
        return ".".join(map(str, version))

    when = When(kernel_from=text(first), kernel_before=text(end))
    assert backports.fits(own(when=when), text(kernel), GCC_12) == (first <= kernel < end)
    compiler = Toolchain("gcc", "gcc", (), "", text(kernel))
    when = When(compiler="gcc", compiler_from=text(first), compiler_before=text(end))
    assert backports.fits(own(when=when), "6.1", compiler) == (first <= kernel < end)


def test_short_versions_end_in_zeros() -> None:
    assert not backports.fits(own(when=When(kernel_before="5.6")), "5.6.0", GCC_12)
    assert backports.fits(own(when=When(kernel_from="5.6")), "5.6.0", GCC_12)


@pytest.mark.parametrize("path", sorted((ROOT / "configs/backports").glob("*.toml")), ids=str)
async def test_each_shipped_one_applies_once_where_its_rules_let_it(path: Path) -> None:
    (each,) = (each for each in backports.load(path.parent) if each.name == path.stem)
    assert each.references
    assert each.when.kernel_before
    assert set(tomllib.loads(path.read_text())) == {"summary", "references", "when", "edits"}
    before = {edit.file: f"first\n{edit.original}last\n".encode() for edit in each.edits}
    done = backports.apply([each], dict(before))
    assert done.names == [each.name]
    after = {change.path: change.content for of in done.applied for change in of.changes}
    assert set(after) == set(before)
    again = backports.apply([each], {name: text or b"" for name, text in after.items()})
    assert again.left_out == [each.name]
