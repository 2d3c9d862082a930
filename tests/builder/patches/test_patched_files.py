"""Patches on a tree leave the event loop free, however large; misplaced files are looked for."""

import asyncio
import shutil
from collections.abc import Callable
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
    ("make", "refused"), [(lambda: edits(60), False), (lambda: edits(900), True), (rewrite, False)]
)
async def test_a_large_patch_blocks_nothing(
    tree: Tree, make: Callable[[], Patch], *, refused: bool
) -> None:
    patch = make()
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
    applied = patched_files.applied(tree, [patch], files, lambda note: None)
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
    named, paths = await patched_files.named([edits(1), wrong])
    assert named[0] == ["large.c"]
    assert paths == {"large.c"}
    assert isinstance(named[1], UserError)
    assert named[1].reason == "unsafe_patch"
    with pytest.raises(UserError, match="not a path inside the tree"):
        await patched_files.read(tree, [edits(1), wrong])


ONE_LINE = "@@ -1 +1 @@\n-int b;\n+int c;\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"--- a/linux/mm/b.c\n+++ b/linux/mm/b.c\n{ONE_LINE}", {"mm/b.c": b"int c;\n"}),
        (  # the file of the same name that the patch names, too, is not the only one
            f"--- a/b.c\n+++ b/b.c\n{ONE_LINE}--- a/mm/b.c\n+++ b/mm/b.c\n{ONE_LINE}",
            "fs/b.c, mm/b.c may be meant",
        ),
        (  # a file at the new path is there, although no patch names that path
            "diff --git a/x/mm/b.c b/x/mm/c.c\nrename from x/mm/b.c\nrename to x/mm/c.c\n",
            "mm/c.c already exists",
        ),
        (
            f"--- a/x/mm/b.c\n+++ b/x/mm/b.c\n{ONE_LINE}"
            "--- /dev/null\n+++ b/x/mm/c.c\n@@ -0,0 +1 @@\n+int c;\n",
            "mm/c.c already exists",
        ),
    ],
)
async def test_files_that_are_not_at_their_paths_are_looked_for_in_the_tree(
    tmp_path: Path, text: str, expected: dict[str, bytes] | str
) -> None:
    for path in ("fs/b.c", "mm/b.c", "mm/c.c"):
        (tmp_path / "lower" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lower" / path).write_text("int b;\n")
    tree = Tree((tmp_path / "lower",), tmp_path / "work")
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            await patched_files.changes(tree, [Patch(diff=text)], lambda note: None)
        return
    changes = await patched_files.changes(tree, [Patch(diff=text)], lambda note: None)
    assert {change.path: change.content for change in changes} == expected


PLAIN = "--- a/tool.sh\n+++ b/tool.sh\n@@ -1,2 +1,2 @@\n #!/bin/sh\n-echo old\n+echo new\n"
GIT = f"diff --git a/tool.sh b/tool.sh\nindex 1111111..2222222 {{}}\n{PLAIN}"
RENAME = """diff --git a/tool.sh b/moved.sh
similarity index 100%
rename from tool.sh
rename to moved.sh
"""
MODE = f"diff --git a/tool.sh b/tool.sh\nold mode 100755\nnew mode 100644\n{PLAIN}"
NEW = """diff --git a/new.sh b/new.sh
new file mode 100755
--- /dev/null
+++ b/new.sh
@@ -0,0 +1 @@
+#!/bin/sh
"""
EDIT = Edit(file="tool.sh", original="echo old", replacement="echo new")
AGAIN = Edit(file="tool.sh", original="#!/bin/sh", replacement="#!/bin/dash")
NEW_EDIT = Edit(file="new.sh", original="#!/bin/sh", replacement="#!/bin/dash")
TEXT = Edit(file="text", original="old", replacement="new")


async def modes(tmp_path: Path, *given: Patch) -> str:
    """What is executable in the tree after the patches."""
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "tool.sh").write_text("#!/bin/sh\necho old\n")
    (lower / "tool.sh").chmod(0o755)
    (lower / "text").write_text("old\n")
    tree = Tree((lower,), tmp_path / "work")
    await tree.write(await patched_files.changes(tree, given, lambda _: None))
    listed = await tree.run(["find", ".", "-type", "f", "-perm", "-111", "-printf", "%P "])
    shutil.rmtree(tmp_path / "work")
    return listed.text.strip()


@pytest.mark.parametrize(
    ("given", "executable"),
    [
        ([Patch(diff=PLAIN)], "tool.sh"),
        ([Patch(diff=GIT.format("100755"))], "tool.sh"),
        ([Patch(diff=GIT.format("100644"))], "tool.sh"),
        ([Patch(edits=[EDIT])], "tool.sh"),
        ([Patch(edits=[EDIT, AGAIN])], "tool.sh"),
        ([Patch(edits=[EDIT]), Patch(edits=[AGAIN])], "tool.sh"),
        ([Patch(diff=RENAME)], "moved.sh"),
        ([Patch(diff=MODE)], ""),
        ([Patch(diff=MODE), Patch(edits=[AGAIN])], ""),
        ([Patch(diff=NEW), Patch(edits=[NEW_EDIT])], "new.sh tool.sh"),
        ([Patch(edits=[TEXT])], "tool.sh"),
    ],
)
async def test_modes_stay(tmp_path: Path, given: list[Patch], executable: str) -> None:
    """A patch that states no mode changes none."""
    assert " ".join(sorted((await modes(tmp_path, *given)).split())) == executable
