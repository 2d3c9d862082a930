"""Patches on a tree, however large, leave the event loop free."""

import asyncio
from functools import cache
from pathlib import Path

import pytest

from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files

pytestmark = pytest.mark.anyio


@cache
def large() -> str:
    """The content of the large file; made by the first test that asks, as each process collects."""
    return "".join(f"int a{number};\n" for number in range(600_000))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree with a file of 8 MB."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "large.c").write_text(large())
    (folder / "small.c").write_text("int a;\n")
    return Tree((folder,), tmp_path / "use")


def edits(number: int) -> Patch:
    return Patch(
        edits=[
            Edit(file="large.c", original=f"int a{n};\n", replacement=f"int b{n};\n")
            for n in range(number)
        ]
    )


def rewrite() -> Patch:
    """A diff of 4 MB."""
    lines = large().splitlines(keepends=True)[:90_000]
    count = len(lines)
    body = "".join(f"-{line}" for line in lines) + "".join(f"+{line[:-2]}x;\n" for line in lines)
    return Patch(diff=f"--- a/large.c\n+++ b/large.c\n@@ -1,{count} +1,{count} @@\n{body}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("patch", "refused"), [(edits(60), False), (edits(900), True), (rewrite(), False)]
)
async def test_a_large_patch_blocks_nothing(tree: Tree, patch: Patch, *, refused: bool) -> None:
    files = await patched_files.read(tree, [patch])
    longest, before = 0.0, asyncio.get_running_loop().time()

    async def tick() -> None:
        nonlocal longest, before
        while True:
            await asyncio.sleep(0.01)
            now = asyncio.get_running_loop().time()
            longest, before = max(longest, now - before), now

    ticking = asyncio.create_task(tick())
    started = asyncio.get_running_loop().time()
    applied = patched_files.applied([patch], files, lambda note: None)
    if refused:
        with pytest.raises(UserError, match="takes too long"):
            await applied
    else:
        assert [each.path for each in patched_files.in_all(await applied)] == ["large.c"]
    took = asyncio.get_running_loop().time() - started
    ticking.cancel()
    assert longest < took / 2  # held up for the whole work before, whatever the host's speed


@pytest.mark.thorough
async def test_a_patch_of_every_size_gives_the_same(tree: Tree) -> None:
    small = Patch(edits=[Edit(file="./small.c", original="int a", replacement="int b")])
    for more in ((), (edits(40),)):
        changed = await patched_files.changes(tree, [small, *more], lambda note: None)
        contents = {change.path: change.content for change in changed}
        assert contents["small.c"] == b"int b;\n"
        assert set(contents) == {"small.c", *(["large.c"] if more else [])}


async def test_what_is_wrong_with_a_patch_is_told_for_each(tree: Tree) -> None:
    wrong = Patch(diff="--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n")
    named = await patched_files.named([edits(1), wrong])
    assert named[0] == ["large.c"]
    assert isinstance(named[1], UserError)
    assert named[1].reason == "unsafe_patch"
    with pytest.raises(UserError, match="not a path inside the tree"):
        await patched_files.read(tree, [edits(1), wrong])
