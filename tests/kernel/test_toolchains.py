"""Real toolchain images of Debian's suites build; each is made once, for this checkout."""

import shutil
from pathlib import Path

import pytest

from kgym.api import steps
from kgym.errors import KgymError
from kgym.host.squashfs import WAYS, Way
from kgym.worker.context import StepContext
from kgym_builder.build.build_step import Builder
from kgym_builder.check.check_step import Checker
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_builder.toolchains.toolchains import Toolchains
from tests.conftest import ANYWHERE, DATA, ROOT, NewRun

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]
SYZBOT = "gcc (GCC) 10.1.0-syz 20200507"
PATCH = steps.Patch(
    edits=[
        steps.Edit(
            file="kernel/watch_queue.c",
            original="type >= WATCH_TYPE__NR",
            replacement="type >= 100",
        )
    ]
)


def suite(folder: Path, ways: tuple[Way, ...] = WAYS) -> SuiteCache:
    toolchains = Toolchains(DATA / "cache")
    rules = ROOT / "configs" / "backports"
    return SuiteCache(folder, rules, origins=ANYWHERE, toolchains=toolchains, ways=ways)


async def needs_image(compiler: str, run: StepContext) -> None:
    try:
        await Toolchains(DATA / "cache").get(compiler, run)
    except KgymError as error:
        if error.cause != "infrastructure" and error.reason != "no_compiler":
            raise
        pytest.skip(f"no image can be made here: {error.message}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("ways", [WAYS, ()], ids=["mounted", "unpacked"])
async def test_what_syzbot_names_builds_patches_and_checks_by_the_suites_compiler(
    new_run: NewRun, fake_build: steps.BuildSpec, tmp_path: Path, ways: tuple[Way, ...]
) -> None:
    spec = fake_build.model_copy(update={"compiler": SYZBOT, "patches": [PATCH]})
    await needs_image(SYZBOT, new_run(spec))
    ours = suite(tmp_path / "cache", ways)
    result = await Builder(ours)(new_run(spec))
    assert result.compiler_version == "gcc-10 (Debian 10.2.1-6) 10.2.1 20210110"
    assert result.compiler_substitution.startswith("bullseye/gcc-10 (gcc-10 (Debian 10.2.1-6)")
    by_name = spec.model_copy(update={"compiler": "bullseye/gcc-10"})
    again = await Builder(ours)(new_run(by_name))
    assert (again.tree, again.memoised, again.compiler_substitution) == (result.tree, True, "")
    by_host = await Builder(ours)(new_run(spec.model_copy(update={"compiler": "gcc"})))
    assert by_host.tree != result.tree
    check = steps.CheckSpec(
        source=spec.source, config=spec.config, compiler=SYZBOT, patches=[PATCH]
    )
    checked = await Checker(ours, tmp_path / "cache")(new_run(check))
    assert [answer.outcome for answer in checked.patches] == [steps.PatchOutcome.COMPILES]
    assert checked.compiler_substitution == result.compiler_substitution


def newest() -> list[tuple[str, str]]:
    """The newest GCC and Clang of each suite that Debian's own archive has, with their versions."""
    suites = {name: of for name, of in steps.compilers.table().suites.items() if not of.archived}
    return [
        (f"{name}/{family}-{versions[-1].partition('.')[0]}", versions[-1])
        for family in ("gcc", "clang")
        for name, of in suites.items()
        if (versions := [version for kind, version in of.compilers() if kind == family])
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("compiler", "version"), newest())
async def test_each_suites_compilers_build(
    new_run: NewRun, fake_build: steps.BuildSpec, tmp_path: Path, compiler: str, version: str
) -> None:
    spec = fake_build.model_copy(update={"compiler": compiler})
    await needs_image(compiler, new_run(spec))
    result = await Builder(suite(tmp_path / "cache"))(new_run(spec))
    compiler_read = steps.compiler_words.read(result.compiler_version)
    assert compiler_read is not None, result.compiler_version
    family = compiler.partition("/")[2].partition("-")[0]
    # As the table has it, by which the nearest to what is described is chosen.
    assert (compiler_read.family, compiler_read.version) == (family, version)
