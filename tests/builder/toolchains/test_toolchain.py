"""A compiler that is there: which version it is taken for, and how make is told to use it."""

from pathlib import Path

import pytest

from kgym.host import detection
from kgym_builder.toolchains.toolchain import described, installed
from tests.tables import rows

# What the kernel's documentation says that LLVM=1 stands for.
LLVM = (
    *("CC=clang", "LD=ld.lld", "AR=llvm-ar", "NM=llvm-nm", "STRIP=llvm-strip"),
    *("OBJCOPY=llvm-objcopy", "OBJDUMP=llvm-objdump", "READELF=llvm-readelf"),
    *("HOSTCC=clang", "HOSTCXX=clang++", "HOSTAR=llvm-ar", "HOSTLD=ld.lld"),
)


@pytest.mark.parametrize(("name", "words", "number"), rows(__file__, "versions.tsv"))
def test_its_number_is_the_version_that_it_says(name: str, words: str, number: str) -> None:
    assert described(name, words).number == number


def test_each_tool_of_a_clang_is_named_as_old_kernels_know_no_other_way() -> None:
    assert described("clang", "").variables == LLVM
    assert described("bookworm/clang-15", "").variables == LLVM  # in an image of its own
    assert described("clang-15", "").variables == tuple(f"{tool}-15" for tool in LLVM)
    assert described("gcc-12", "").variables == ("CC=gcc-12", "HOSTCC=gcc-12")
    assert described("bullseye/gcc-10", "").variables == ("CC=gcc-10", "HOSTCC=gcc-10")


def test_other_tools_are_another_clang() -> None:
    host, image = described("clang-15", "x"), described("bookworm/clang-15", "x")
    assert set(LLVM) < set(image.parts)
    assert host.parts != image.parts
    assert described("gcc-12", "x").parts == ("gcc-12", "x")  # entries of GCC stay what they were


@pytest.mark.anyio
async def test_a_clang_without_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One that no host has: where Clang 15 is installed, its own would take the place.
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tools = {tool.partition("=")[2] + "-99" for tool in LLVM}
    for tool in tools:
        (tmp_path / tool).write_text("#!/bin/sh\necho 'Debian clang version 99.0.1'\n")
        (tmp_path / tool).chmod(0o755)
    there = await installed("clang-99")
    assert there is not None
    assert (there.number, there.name) == ("99.0.1", "clang-99")
    assert "clang-99" in detection.detect().compilers
    for tool in tools:
        (tmp_path / tool).chmod(0o644)
        assert await installed("clang-99") is None
        assert "clang-99" not in detection.detect().compilers
        (tmp_path / tool).chmod(0o755)


@pytest.mark.anyio
async def test_a_replaced_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    numbers = []
    for number in ("98.1.0", "98.2.0"):
        program = tmp_path / "new"
        program.write_text(f"#!/bin/sh\necho 'gcc-98 (Debian {number}-1) {number}'\n")
        program.chmod(0o755)
        program.rename(tmp_path / "gcc-98")
        for _ in range(2):
            there = await installed("gcc-98")
            assert there is not None
            numbers.append(there.number)
    assert numbers == ["98.1.0", "98.1.0", "98.2.0", "98.2.0"]
