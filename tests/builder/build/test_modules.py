"""Symbols that are `m`: modules are built and handed on, or built in where that is asked for."""

import io
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import BuildResult, BuildSpec, Edit, KernelConfig, Patch
from kgym.errors import InfrastructureError
from kgym.source import module_archive
from kgym.worker.context import StepContext
from kgym_builder.build.build_step import Builder
from tests.builder.conftest import FakeLinux
from tests.conftest import NewRun
from tests.refused import refused

pytestmark = pytest.mark.anyio

FRAGMENT = "CONFIG_BASE=y\nCONFIG_EXTRA=m\n"
MODULE = "lib/modules/6.1.0/kernel/lib/extra.ko"


async def built(
    builder: Builder, new_run: NewRun, spec: BuildSpec, **config: object
) -> tuple[BuildResult, StepContext]:
    wanted = {"base": "allnoconfig", "fragments": [FRAGMENT], **config}
    run = new_run(spec.model_copy(update={"config": KernelConfig.model_validate(wanted)}))
    return await builder(run), run


async def archive(run: StepContext, folder: Path) -> Path:
    (kept,) = [artifact for artifact in run.artifacts if artifact.name == "modules.tar"]
    path = folder / "modules.tar"
    await run.storage.get(kept.key, path)
    return path


async def test_modules_are_built_installed_and_counted(linux: FakeLinux, tmp_path: Path) -> None:
    result, run = await built(linux.builder, linux.new_run, linux.spec)
    assert (result.modules, result.built_in, result.dropped_symbols) == (1, [], [])
    with tarfile.open(await archive(run, tmp_path)) as packed:
        assert MODULE in packed.getnames()
        assert not any(member.issym() for member in packed.getmembers())  # `build` leads nowhere


async def test_a_patch_of_a_module_is_in_the_archive(linux: FakeLinux, tmp_path: Path) -> None:
    _, first = await built(linux.builder, linux.new_run, linux.spec)
    before = (await archive(first, tmp_path)).read_bytes()
    edit = Edit(file="lib/extra.c", original="= 1", replacement="= 2")
    patched = linux.spec.model_copy(update={"patches": [Patch(edits=[edit])]})
    result, second = await built(linux.builder, linux.new_run, patched)
    assert (result.objects_compiled, result.shortcut, result.modules) == (1, False, 1)
    assert (await archive(second, tmp_path)).read_bytes() != before


async def test_built_in_instead_they_are_part_of_the_kernel_and_named(linux: FakeLinux) -> None:
    result, run = await built(linux.builder, linux.new_run, linux.spec, modules="builtin")
    assert (result.modules, result.built_in, result.dropped_symbols) == (0, ["EXTRA"], [])
    assert "modules.tar" not in {artifact.name for artifact in run.artifacts}
    assert result.objects_compiled == 5
    again, _ = await built(linux.builder, linux.new_run, linux.spec, modules="builtin")
    assert (again.memoised, again.built_in) == (True, ["EXTRA"])


async def test_modules_are_installed_unpacked(linux: FakeLinux, tmp_path: Path) -> None:
    packed = f"{FRAGMENT}CONFIG_MODULE_COMPRESS_XZ=y\n"
    result, run = await built(linux.builder, linux.new_run, linux.spec, fragments=[packed])
    assert (result.modules, result.dropped_symbols) == (1, [])
    with tarfile.open(await archive(run, tmp_path)) as packed:
        names = packed.getnames()
    assert MODULE in names
    assert f"{MODULE}.xz" not in names


async def test_modules_that_no_guest_could_load_are_a_failure_with_a_name(linux: FakeLinux) -> None:
    edit = Edit(file="Makefile", original="6.1.0/modules.dep", replacement="6.1.0/modules.none")
    patched = linux.spec.model_copy(update={"patches": [Patch(edits=[edit])]})
    with refused("no_modules_dep", "depmod", kind=InfrastructureError):
        await built(linux.builder, linux.new_run, patched)


RELEASE = "lib/modules/6.1.0"
FILE = f"{RELEASE}/a.ko"
INDEX = f"{RELEASE}/modules.dep"


def member(name: str, kind: bytes = tarfile.REGTYPE, **what: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for field, value in what.items():
        setattr(made, field, value)
    return made


def make_archive(path: Path, *members: tarfile.TarInfo, form: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def claims(path: Path, size: bytes) -> Path:
    """Change the size that the first header of an archive states."""
    head = bytearray(path.read_bytes())
    head[124:136] = size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[:512])
    path.write_bytes(head)
    return path


def refusal(path: Path) -> str:
    with refused("bad_modules") as error:
        module_archive.files(path)
    assert error.value.message.isprintable()
    return error.value.message


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_files_are_found_with_their_places(tmp_path: Path, form: int) -> None:
    folders = (member(name, tarfile.DIRTYPE) for name in ("lib", "lib/modules", RELEASE))
    files = (member(FILE, size=1000), member(INDEX, size=512), member(f"{RELEASE}/b.ko.xz"))
    path = make_archive(tmp_path / "modules.tar", *folders, *files, form=form)
    spans = [(file.name, file.begin, file.size) for file in module_archive.files(path)]
    with tarfile.open(path) as ours:
        assert spans == [(each.name, each.offset_data, each.size) for each in ours if each.isfile()]
    assert len(spans) == 3
    assert module_archive.count(path) == 2


def test_a_long_name_is_read(tmp_path: Path) -> None:
    name = f"{RELEASE}/{'/'.join(['x' * 50] * 3)}/a.ko"
    path = make_archive(tmp_path / "modules.tar", member(name), member(INDEX))
    assert [file.name for file in module_archive.files(path)] == [name, INDEX]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kgym/run", tarfile.REGTYPE),
        ("init", tarfile.REGTYPE),
        ("lib/modules/../../init", tarfile.REGTYPE),
        ("lib/modules/6.1.0/../../../init", tarfile.REGTYPE),
        ("lib/modules/6.1.0/..", tarfile.DIRTYPE),
        ("lib/../init", tarfile.DIRTYPE),
        ("bin", tarfile.DIRTYPE),
        ("/lib/modules/6.1.0/a.ko", tarfile.REGTYPE),
        (FILE, tarfile.SYMTYPE),
        (FILE, tarfile.LNKTYPE),
        (FILE, tarfile.CHRTYPE),
        (FILE, tarfile.BLKTYPE),
        (FILE, tarfile.FIFOTYPE),
        (FILE, tarfile.CONTTYPE),
        (FILE, tarfile.GNUTYPE_SPARSE),
        (FILE, tarfile.GNUTYPE_LONGNAME),
        (FILE, tarfile.XHDTYPE),
        (FILE, tarfile.XGLTYPE),
        ("lib/modules/6.1.0/a b.ko", tarfile.REGTYPE),
        ("lib/modules/6.1.0/\x1b[2J.ko", tarfile.REGTYPE),
    ],
)
def test_an_archive_brings_nothing_but_modules(tmp_path: Path, name: str, kind: bytes) -> None:
    path = make_archive(tmp_path / "modules.tar", member(name, kind, linkname="/etc/passwd"))
    assert "it holds" in refusal(path)


@pytest.mark.attack
def test_a_sparse_file_by_an_extended_header_is_refused(tmp_path: Path) -> None:
    wanted = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999999"}
    large = member(FILE, pax_headers=wanted)
    path = make_archive(tmp_path / "modules.tar", large, form=tarfile.PAX_FORMAT)
    assert "an extended header" in refusal(path)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("size", "why"),
    [
        (b"77777777777\0", "8,589,934,591 bytes; a file may have 268,435,456"),
        (b"02000000000\0", "it is cut off: .* has 268,435,456 bytes; 9,728 follow"),
        (b"\xff" * 12, "negative, too large, or no number"),
        (b"\xff" * 10 + b"\xfe\x00", "negative, too large, or no number"),
        (b"\x80" + b"\xff" * 11, "negative, too large, or no number"),
        (b"-0000000001\0", "negative, too large, or no number"),
        (b"0x100000000\0", "negative, too large, or no number"),
        (b"\0" * 12, "negative, too large, or no number"),
    ],
)
def test_an_archive_that_lies_of_a_size_is_refused(tmp_path: Path, size: bytes, why: str) -> None:
    path = claims(make_archive(tmp_path / "modules.tar", member(FILE)), size)
    assert re.search(why, refusal(path))


def _sealed(head: bytes) -> bytes:
    """Return a header with the checksum that it should have."""
    blank = head[:148] + b" " * 8 + head[156:]
    return head[:148] + b"%06o\0 " % sum(blank) + head[156:]


# Places of a header: 0 name, 124 size, 156 kind, 257 magic, 345 the name's prefix.
@pytest.mark.attack
@pytest.mark.parametrize(
    "forged",
    [
        {345: b"lib/modules/.."},
        {345: b"/"},
        {345: b"../lib/modules", 0: b"6.1.0/a.ko\0"},
        {345: b"lib/modules/6.1.0", 0: b"../../../init\0"},
        {0: b"lib/modules/6.1.0/a.ko/\0"},
        {0: b"lib/modules/6.1.0//a.ko\0"},
        {0: b"./lib/modules/6.1.0/a.ko\0"},
        {0: b"lib/modules/6.1.0/\xc3\xa9.ko\0"},
        {0: b"lib/modules/6.1.0/a;reboot.ko\0"},
        {0: b"lib/modules/modules.dep\0"},
        {0: b"LIB/modules/6.1.0/a.ko\0"},
        {0: b"\0"},
        {0: b"x" * 100},
        {156: b"7"},
        {156: b"D"},
        {156: b"V"},
        {156: b"5", 124: b"00000001000\0"},
        {257: b"\0" * 8},
        {148: b"0000000\0"},
    ],
    ids=str,
)
def test_a_forged_header_is_refused(tmp_path: Path, forged: dict[int, bytes]) -> None:
    path = make_archive(tmp_path / "modules.tar", member(FILE), member(INDEX))
    head = bytearray(path.read_bytes())
    for at, value in forged.items():
        head[at : at + len(value)] = value
    path.write_bytes(bytes(head) if 148 in forged else _sealed(head[:512]) + head[512:])
    refusal(path)


@pytest.mark.attack
def test_a_huge_archive_is_refused_unread(tmp_path: Path) -> None:
    path = make_archive(tmp_path / "modules.tar", member(FILE))
    os.truncate(path, (2 << 30) + 1)
    assert "2,147,483,649 bytes; it may have 2,147,483,648" in refusal(path)


@pytest.mark.attack
def test_many_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "modules.tar"
    with path.open("wb") as sink:
        for number in range(50_001):
            sink.write(member(f"{RELEASE}/{number}.ko").tobuf(tarfile.USTAR_FORMAT))
        sink.write(bytes(1024))
    assert "more than 50,000" in refusal(path)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([FILE, FILE], "twice"),
        ([FILE, f"{FILE}/b.ko"], "within the file"),
        ([f"{FILE}/b.ko", FILE], "within the file"),
    ],
)
def test_names_that_clash_are_refused(tmp_path: Path, names: list[str], why: str) -> None:
    path = make_archive(tmp_path / "modules.tar", *map(member, [*names, INDEX]))
    assert why in refusal(path)


def test_an_archive_without_an_end_is_refused(tmp_path: Path) -> None:
    path = make_archive(tmp_path / "modules.tar", member(INDEX), member(FILE, size=700))
    whole = path.read_bytes()
    for length in (0, 511, 512, 1024, 1500, 2048):
        path.write_bytes(whole[:length])
        assert "cut off" in refusal(path)


def test_no_archive_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.tar").write_bytes(b"no tar" * 1000)
    assert "cannot be read" in refusal(tmp_path / "modules.tar")
    path = make_archive(tmp_path / "modules.tar", member(FILE))
    path.write_bytes(b"m" + path.read_bytes()[1:])
    assert "checksum" in refusal(path)


@pytest.mark.parametrize(
    "others", [[], ["lib/modules/6.1.1/modules.dep"], [f"{RELEASE}/x/modules.dep"]]
)
def test_modules_without_an_index_are_nobodys_input(tmp_path: Path, others: list[str]) -> None:
    path = make_archive(tmp_path / "modules.tar", *map(member, [FILE, *others]))
    with refused("no_modules_dep", f"no modules.dep in {RELEASE}", kind=InfrastructureError):
        module_archive.count(path)
