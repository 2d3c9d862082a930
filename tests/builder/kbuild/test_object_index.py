"""The index of a tree, however large."""

from pathlib import Path

import pytest

from kgym.errors import InfrastructureError
from kgym_builder.kbuild import object_index
from kgym_builder.kbuild.object_index import Index, Recipes
from kgym_builder.kbuild.saved_commands import Recipe
from kgym_builder.kbuild.working_tree import Tree
from tests.refused import refused

pytestmark = pytest.mark.anyio

OBJECTS = 2000
# Of each object: with a hundred bytes counted for a line, more than a sandbox may print.
HEADERS = 800


def cmd_file(number: int) -> str:
    path = f"drivers/part{number % 50}/file{number}"
    headers = "".join(f"  include/linux/header{number}.h \\\n" for number in range(HEADERS))
    return (
        f"cmd_{path}.o := gcc -c -o {path}.o {path}.c\n\nsource_{path}.o := {path}.c\n\n"
        f"deps_{path}.o := \\\n{headers}\n{path}.o: $(deps_{path}.o)\n\n$(deps_{path}.o):\n"
    )


@pytest.mark.thorough
async def test_a_large_tree_has_an_index(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(OBJECTS):
        folder = source / f"drivers/part{number % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".file{number}.o.cmd").write_text(cmd_file(number))
    tree = Tree((source,), tmp_path / "tree")
    await object_index.build(tree, tmp_path / "index.db")
    readers = Index(tmp_path / "index.db").dependents(
        ["include/linux/header799.h", "drivers/part7/file57.c", "drivers/part7/Makefile", "none.h"]
    )
    assert [len(finding.objects) for finding in readers.values()] == [OBJECTS, 1, OBJECTS // 50, 0]


async def test_a_tree_without_commands_has_none(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(InfrastructureError, match="none of kbuild's"):
        await object_index.build(Tree((tmp_path / "source",), tmp_path / "tree"), tmp_path / "db")


@pytest.mark.thorough
def test_an_index_of_more_files_than_a_kernel_has_is_refused() -> None:
    recipes = Recipes()
    for number in range(10):
        headers = tuple(f"{number}/{each}.h" for each in range(100_000))
        recipes.add(Recipe(f"{number}.o", "gcc", f"{number}.c", headers))
    with refused("too_many_files", "1,000,000 files"):
        recipes.add(Recipe("x.o", "gcc", "x.c", ("one/more.h",)))
