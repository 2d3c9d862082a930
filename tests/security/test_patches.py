"""Patches whose files would lie outside the tree are refused before anything is written."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import Patch, TarballSource
from kgym.errors import UserError
from tests.conftest import ROOT
from tests.security.conftest import Victim, added

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

LINKED = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-kept\n+pwned\n"
RENAMED = (
    "diff --git a/{0} b/{1}\nsimilarity index {2}%\nrename from {0}\nrename to {1}\n"
    "--- a/{0}\n+++ b/{1}\n@@ -1 +1 @@\n-kept\n+pwned\n"
)
LINK = (
    "diff --git a/link b/link\nnew file mode 120000\nindex 0000000..1111111\n"
    "--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+{0}\n\\ No newline at end of file\n"
)
THROUGH_NEW_LINK = LINK + "--- /dev/null\n+++ b/link/pwned\n@@ -0,0 +1 @@\n+pwned\n"
SUBMODULE = (
    "diff --git a/fs b/fs\nnew file mode 160000\nindex 0000000..1111111\n--- /dev/null\n+++ b/fs\n"
    "@@ -0,0 +1 @@\n+Subproject commit 0123456789012345678901234567890123456789\n"
)
CHANGED_TO_LINK = (
    "diff --git a/kept b/kept\nold mode 100644\nnew mode 120000\n--- a/kept\n+++ b/kept\n"
    "@@ -1 +1 @@\n-kept\n+{0}/outside\n"
)

ESCAPES = {
    "a path upwards": added("../outside", "pwned"),
    "a path upwards from within": added("kernel/../../../outside", "pwned"),
    "an absolute path": added("{0}/outside", "pwned").replace("b/{0}", "{0}"),
    "an absolute path after the prefix": added("/{0}/outside", "pwned"),
    "a symbolic link": LINK,
    "a file in a folder that it makes a symbolic link": THROUGH_NEW_LINK,
    "a file that becomes a symbolic link": CHANGED_TO_LINK,
    "a file behind a folder's symbolic link": LINKED.format("folder/outside"),
    "a new file behind a folder's symbolic link": added("folder/pwned", "pwned"),
    "a file that is a symbolic link": LINKED.format("file"),
    "a file renamed upwards": RENAMED.format("kept", "../outside", 50),
    "a file renamed from above": RENAMED.format("../outside", "taken", 50),
    "a file renamed into a symbolic link": RENAMED.format("kept", "folder/outside", 50),
    "a file renamed from behind a symbolic link": RENAMED.format("folder/outside", "taken", 50),
    "a submodule": SUBMODULE,
    "a file of Git's": added(".git/hooks/post-checkout", "pwned"),
}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    folder.chmod(0o777)
    (folder / "outside").write_text("kept\n")
    (folder / "outside").chmod(0o666)
    return folder


@pytest.fixture(scope="module")
def worker(worker: Victim, outside: Path) -> Victim:
    """A worker whose kernel source has symbolic links that lead out of it."""
    tree = worker.folder / "linked"
    subprocess.run(["cp", "-r", ROOT / "tests" / "fakelinux", tree], check=True, timeout=20)
    (tree / "kept").write_text("kept\n")
    (tree / "folder").symlink_to(outside)
    (tree / "file").symlink_to(outside / "outside")
    tar = worker.folder / "linked.tar"
    subprocess.run(["tar", "-cf", tar, "-C", tree.parent, "linked"], check=True, timeout=20)
    source = TarballSource(url=str(tar), sha256=hashlib.sha256(tar.read_bytes()).hexdigest())
    return Victim(worker.folder, worker.build.model_copy(update={"source": source}))


async def test_a_patch_that_leads_out_of_the_tree_is_refused(victim: Victim, outside: Path) -> None:
    before = sorted(victim.folder.iterdir())
    reasons = {}
    for name, diff in ESCAPES.items():
        error = (await victim.suffers(Patch(diff=diff.replace("{0}", str(outside))))).error
        assert isinstance(error, UserError), name
        reasons[name] = error.reason
    assert reasons == dict.fromkeys(ESCAPES, "unsafe_patch")
    assert [path.name for path in outside.iterdir()] == ["outside"]
    assert (outside / "outside").read_text() == "kept\n"
    assert sorted(victim.folder.iterdir()) == before


async def test_a_file_below_a_file_is_the_fault_of_its_patch(victim: Victim) -> None:
    for path in ("kernel/fork.c/x", "kernel"):
        error = (await victim.suffers(Patch(diff=added(path, "x")))).error
        assert isinstance(error, UserError), path
        assert error.reason == "patch_does_not_apply"


async def test_a_kernel_that_is_no_regular_file_is_not_taken_out_of_the_tree(
    victim: Victim, outside: Path
) -> None:
    recipe = "@objcopy -S $< $@"
    for what in (f"ln -sf {outside}/outside", "ln -sf /dev/zero", "mkfifo", "mkdir"):
        old = (ROOT / "tests" / "fakelinux" / "Makefile").read_text().splitlines()
        line = next(n for n, text in enumerate(old, 1) if recipe in text)
        hunk = f"@@ -{line} +{line} @@\n-\t{recipe}\n+\t@rm -f $@; echo attack; {what} $@\n"
        patch = Patch(diff=f"--- a/Makefile\n+++ b/Makefile\n{hunk}")
        suffered = await victim.suffers(patch)
        assert "attack\n" in suffered.log
        assert suffered.error is not None
        assert (suffered.error.cause, suffered.error.reason) == ("user", "no_kernel")
