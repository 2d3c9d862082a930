"""Which patches the shortcut can build, and what it compiles for them."""

from pathlib import Path

import pytest

from kgym.source.patching import Change
from kgym_builder.kbuild.object_index import Index, Recipes
from kgym_builder.kbuild.saved_commands import Recipe
from kgym_builder.suitecache.link_shortcut import objects
from tests.tables import rows

LINKED = ["kernel/fork.o", "kernel/exit.o", "arch/x86/lib/memcpy.o", "arch/x86/boot/main.o"]
COMMANDS = {
    "kernel/fork.o": ("kernel/fork.c", "include/linux/fork.h", "include/linux/all.h"),
    "kernel/exit.o": ("kernel/exit.c", "include/linux/all.h", "include/generated/made.h"),
    "net/module.o": ("net/module.c", "include/linux/module.h"),
    "arch/x86/lib/memcpy.o": ("arch/x86/lib/memcpy.S", "include/linux/asm.h"),
    "arch/x86/boot/main.o": ("arch/x86/boot/main.c", "arch/x86/boot/boot.h"),
    "scripts/sign.o": ("scripts/sign.c", "include/linux/sign.h"),
    "kernel/bounds.s": ("kernel/bounds.c", "include/linux/bounds.h"),
}


@pytest.fixture
def index(tmp_path: Path) -> Index:
    recipes = Recipes()
    for target, files in COMMANDS.items():
        recipes.add(Recipe(target, f"gcc -c -o {target} {files[0]}", files[0], files))
    recipes.write(tmp_path / "index.db")
    return Index(tmp_path / "index.db")


def compiled(index: Index, *paths: str) -> list[str] | None:
    return objects([Change(path, b"new") for path in paths], index, LINKED)


def test_a_c_file_is_compiled(index: Index) -> None:
    assert compiled(index, "kernel/fork.c") == ["kernel/fork.o"]


def test_a_header_compiles_all_that_read_it(index: Index) -> None:
    both = ["kernel/exit.o", "kernel/fork.o"]
    assert compiled(index, "include/linux/all.h") == both
    assert compiled(index, "include/linux/fork.h", "kernel/exit.c") == both


@pytest.mark.parametrize("path", ["drivers/idle.c", "Documentation/fork.rst", "MAINTAINERS"])
def test_what_the_config_does_not_compile_needs_nothing(index: Index, path: str) -> None:
    assert compiled(index, path) == []


@pytest.mark.parametrize("path", [line for (line,) in rows(__file__, "make_has_to_see.txt")])
def test_what_make_has_to_see_is_left_to_make(index: Index, path: str) -> None:
    assert compiled(index, path) is None
    assert compiled(index, "kernel/fork.c", path) is None


def test_a_file_that_is_removed_is_left_to_make(index: Index) -> None:
    assert objects([Change("kernel/fork.c", None)], index, LINKED) is None
