"""Scripts of the tree stay executable when a patch changes them."""

import shutil
from pathlib import Path

import pytest

from kgym.api.steps import Edit, Patch
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files

pytestmark = pytest.mark.anyio

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
