"""Symbols that are `m`: modules are built and handed on, or built in where that is asked for."""

import tarfile
from pathlib import Path

import pytest

from kgym.api.steps import BuildResult, BuildSpec, Edit, KernelConfig, Patch
from kgym.errors import UserError
from kgym.source import module_archive
from kgym.worker.context import StepContext
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import ANYWHERE, ROOT, NewRun

pytestmark = pytest.mark.anyio

FRAGMENT = "CONFIG_BASE=y\nCONFIG_EXTRA=m\n"
MODULE = "lib/modules/6.1.0/kernel/lib/extra.ko"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(SuiteCache(tmp_path / "cache", ROOT / "configs" / "backports", origins=ANYWHERE))


async def built(
    builder: Builder, new_run: NewRun, spec: BuildSpec, **config: object
) -> tuple[BuildResult, StepContext]:
    wanted = {"base": "allnoconfig", "fragments": [FRAGMENT], **config}
    run = new_run(spec.model_copy(update={"config": KernelConfig.model_validate(wanted)}))
    return await builder(run), run


async def archive(run: StepContext, folder: Path) -> Path:
    (kept,) = [one for one in run.artifacts if one.name == "modules.tar"]
    path = folder / "modules.tar"
    await run.storage.get(kept.key, path)
    return path


async def test_modules_are_built_installed_and_counted(
    builder: Builder, new_run: NewRun, fake_build: BuildSpec, tmp_path: Path
) -> None:
    result, run = await built(builder, new_run, fake_build)
    assert (result.modules, result.built_in, result.dropped_symbols) == (1, [], [])
    with tarfile.open(await archive(run, tmp_path)) as found:
        assert MODULE in found.getnames()
        assert not any(one.issym() for one in found.getmembers())  # `build` leads nowhere


async def test_a_patch_of_a_module_is_in_the_archive(
    builder: Builder, new_run: NewRun, fake_build: BuildSpec, tmp_path: Path
) -> None:
    _, first = await built(builder, new_run, fake_build)
    before = (await archive(first, tmp_path)).read_bytes()
    edit = Edit(file="lib/extra.c", original="= 1", replacement="= 2")
    patched = fake_build.model_copy(update={"patches": [Patch(edits=[edit])]})
    result, second = await built(builder, new_run, patched)
    assert (result.objects_compiled, result.shortcut, result.modules) == (1, False, 1)
    assert (await archive(second, tmp_path)).read_bytes() != before


async def test_built_in_instead_they_are_part_of_the_kernel_and_named(
    builder: Builder, new_run: NewRun, fake_build: BuildSpec
) -> None:
    result, run = await built(builder, new_run, fake_build, modules="builtin")
    assert (result.modules, result.built_in, result.dropped_symbols) == (0, ["EXTRA"], [])
    assert "modules.tar" not in {one.name for one in run.artifacts}
    assert result.objects_compiled == 5
    again, _ = await built(builder, new_run, fake_build, modules="builtin")
    assert (again.memoised, again.built_in) == (True, ["EXTRA"])


def make_archive(path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return path


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kgym/run", tarfile.REGTYPE),
        ("init", tarfile.REGTYPE),
        ("lib/modules/../../init", tarfile.REGTYPE),
        ("lib/modules/6.1.0/../../../init", tarfile.REGTYPE),
        ("/lib/modules/6.1.0/a.ko", tarfile.REGTYPE),
        ("lib/modules/6.1.0/a.ko", tarfile.SYMTYPE),
        ("lib/modules/6.1.0/a.ko", tarfile.LNKTYPE),
        ("lib/modules/6.1.0/a.ko", tarfile.CHRTYPE),
        ("lib/modules/6.1.0/a b.ko", tarfile.REGTYPE),
    ],
)
def test_an_archive_brings_nothing_but_modules(tmp_path: Path, name: str, kind: bytes) -> None:
    path = make_archive(tmp_path / "modules.tar", name, kind, "/etc/passwd")
    with pytest.raises(UserError) as error:
        module_archive.count(path)
    assert error.value.reason == "bad_modules"


@pytest.mark.attack
def test_an_archive_that_claims_a_large_file_is_refused(tmp_path: Path) -> None:
    path = make_archive(tmp_path / "modules.tar", "lib/modules/6.1.0/a.ko")
    head = bytearray(path.read_bytes())
    head[124:136] = b"77777777777\0"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[:512])
    path.write_bytes(head)
    with pytest.raises(UserError, match="2 GiB"):
        module_archive.count(path)


def test_no_archive_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(UserError, match="cannot be read"):
        module_archive.count(tmp_path / "modules.tar")
