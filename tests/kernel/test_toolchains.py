"""Real toolchain images of Debian's suites build; each is made once, for this checkout."""

import shutil
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, CheckSpec, Edit, Patch, PatchOutcome
from kgym.errors import InfrastructureError
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
PATCH = Patch(
    edits=[
        Edit(
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
    except InfrastructureError as error:
        pytest.skip(f"no image can be made here: {error.message}")


@pytest.mark.in_turn(8, on=7)
@pytest.mark.parametrize("ways", [WAYS, ()], ids=["mounted", "unpacked"])
async def test_what_syzbot_names_builds_patches_and_checks_by_the_suites_compiler(
    new_run: NewRun, fake_build: BuildSpec, tmp_path: Path, ways: tuple[Way, ...]
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
    check = CheckSpec(source=spec.source, config=spec.config, compiler=SYZBOT, patches=[PATCH])
    checked = await Checker(ours, tmp_path / "cache")(new_run(check))
    assert [one.outcome for one in checked.patches] == [PatchOutcome.COMPILES]
    assert checked.compiler_substitution == result.compiler_substitution


@pytest.mark.in_turn(8, on=1)
@pytest.mark.parametrize(
    "compiler", ["bullseye/gcc-9", "bookworm/clang-15", "trixie/gcc-14", "bookworm/gcc-12"]
)
async def test_each_suites_compilers_build(
    new_run: NewRun, fake_build: BuildSpec, tmp_path: Path, compiler: str
) -> None:
    spec = fake_build.model_copy(update={"compiler": compiler})
    await needs_image(compiler, new_run(spec))
    result = await Builder(suite(tmp_path / "cache"))(new_run(spec))
    assert result.compiler_version.startswith(
        f"{compiler.rpartition('/')[2].partition('-')[0]}-"
    ) or ("clang version" in result.compiler_version)
