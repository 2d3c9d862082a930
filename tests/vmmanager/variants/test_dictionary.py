"""The dictionary of variants, read from real machine code."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import Dictionary
from kgym_vmmanager.variants import dictionary

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

SOURCE = """
extern int report(const char *what, long value);
int bound(unsigned operation)
{ int x = (int)(operation << 8) >> 20; return x < 0 || x > 31 ? 0 : 1 << x; }
int flag(unsigned flags) { return report(flags & 0x00fff000 ? "keyring" : "user", flags); }
int small(long size) { if (size > 4096) return -22; return report("size", size & 0xf0); }
int far(long size) { return size == 987654; }
static const struct { const char *name; long flag; } options[] = {
    { "source", 1 }, { "user_xattr=%s", 2 }, { "no such option", 3 } };
const void *table(void) { return options; }
int main(void) { return 0; }
int report(const char *what, long value) { return what[0] + value; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose functions stand for a kernel's."""
    folder = tmp_path_factory.mktemp("kernel")
    folder.chmod(0o755)  # binutils run as the sandbox's user
    (folder / "kernel.c").write_text(SOURCE)
    argv = ["gcc", "-O2", "-fno-inline", "-fno-pie", "-no-pie", "-mcmodel=kernel", "-mno-red-zone"]
    # The kernel's addresses: strings are recognised by them.
    sections = "-Wl,-e,main,-Ttext=0xffffffff81000000,--section-start=.rodata=0xffffffff81800000"
    argv += ["-static", "-nostdlib", sections, "-o", str(folder / "vmlinux")]
    subprocess.run([*argv, folder / "kernel.c"], check=True, timeout=60)
    return folder / "vmlinux"


async def of(program: Path, *functions: str) -> Dictionary:
    return await dictionary.of_kernel(program, functions)


async def test_bounds_are_found_even_if_the_compiler_shifts_them(program: Path) -> None:
    constants = await of(program, "bound")
    assert 31 in constants.values or 32 in constants.values
    assert (12, 12) in constants.fields


async def test_masks_are_bit_fields_and_strings_are_read(program: Path) -> None:
    constants = await of(program, "flag")
    assert (12, 12) in constants.fields
    assert 0xFFF000 in constants.values
    texts = {bytes.fromhex(text) for text in constants.strings}
    assert {b"keyring\0", b"user\0"} <= texts


async def test_names_of_the_subsystem_are_read_from_its_tables_too(program: Path) -> None:
    constants = await dictionary.of_kernel(program, ["bound"], subsystem=True)
    texts = {bytes.fromhex(text) for text in constants.strings}
    assert {b"source\0", b"user_xattr=%s\0", b"keyring\0"} <= texts
    assert b"no such option\0" not in texts
    assert 987654 not in constants.values
    assert (await of(program, "bound")).strings == []


async def test_only_the_named_functions_count_and_unknown_ones_do_not_matter(program: Path) -> None:
    assert 987654 not in (await of(program, "small")).values
    assert 987654 in (await of(program, "nowhere", "far")).values
    assert await of(program, "nowhere") == Dictionary()


@pytest.mark.parametrize(
    "constant",
    ["dffffc0000000000", "f1f1f1f1", "f3f30400", "41b58ab3", "dead000000000100", "1", "0"],
)
async def test_constants_of_detectors_are_left_out(constant: str) -> None:
    line = f"ffffffff81000000:\tmovabs $0x{constant},%rax"
    assert dictionary.of_code([line]) == Dictionary()


async def test_the_first_functions_come_first(program: Path) -> None:
    far, small = await of(program, "far"), await of(program, "small")
    assert dictionary.merged(far, small).values[0] == 987654
    assert dictionary.merged(small, far).values[-1] == 987654


@pytest.mark.attack
async def test_a_hostile_file_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "vmlinux").write_bytes(b"\x7fELF" + bytes(range(256)) * 100)
    with pytest.raises(Exception, match="nm"):
        await dictionary.of_kernel(tmp_path / "vmlinux", ["main"])
