"""The check step on a small make tree that behaves like a kernel."""

import shutil
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, CheckResult, CheckSpec, Edit, KernelConfig, Patch, PatchCheck
from kgym.errors import UserError
from kgym.host.squashfs import Way
from kgym_builder.check.check_step import Checker
from tests.builder.conftest import suite_cache
from tests.conftest import ROOT, NewRun

pytestmark = pytest.mark.anyio

WATCH = "kernel/watch_queue.c"
HEADER = "include/linux/kernel.h"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Entries and bases, kept for all tests; what is remembered of a check is its own test's."""
    return tmp_path_factory.mktemp("cache")


def config(text: str) -> KernelConfig:
    return KernelConfig(base="allnoconfig", fragments=[text])


def edits(*changes: tuple[str, str, str]) -> Patch:
    """A patch of (file, original, replacement)."""
    return Patch(
        edits=[Edit(file=file, original=old, replacement=new) for file, old, new in changes]
    )


def added(path: str, *lines: str) -> Patch:
    """A patch that adds a file."""
    body = "".join(f"+{line}\n" for line in lines)
    return Patch(diff=f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}")


class Checks:
    """Runs check steps, each with the patches given."""

    def __init__(self, checker: Checker, new_run: NewRun, spec: CheckSpec) -> None:
        self.checker = checker
        self.new_run = new_run
        self.spec = spec

    async def result(self, *patches: Patch, **changes: object) -> CheckResult:
        spec = self.spec.model_copy(update={"patches": list(patches), **changes})
        return await self.checker(self.new_run(spec))

    async def single(self, patch: Patch, **changes: object) -> PatchCheck:
        (check,) = (await self.result(patch, **changes)).patches
        return check


@pytest.fixture
def checks(cache: Path, new_run: NewRun, fake_build: BuildSpec) -> Checks:
    """Checks on the small make tree, by default with one symbol."""
    nothing = edits(("none", "x", "y"))
    base = config("CONFIG_BASE=y\n")
    spec = CheckSpec(source=fake_build.source, config=base, patches=[nothing])
    return Checks(Checker(suite_cache(cache), cache), new_run, spec)


def files(check: PatchCheck) -> dict[str, tuple[str, int, int]]:
    return {each.path: (each.outcome, each.objects, each.dependents) for each in check.files}


async def test_a_patch_that_compiles_says_so_with_what_it_changes(checks: Checks) -> None:
    check = await checks.single(edits((WATCH, "type >= WATCH_TYPE__NR", "type > 100")))
    assert (check.outcome, check.reason, check.diagnostics) == ("compiles", "", [])
    assert files(check) == {WATCH: ("compiles", 1, 1)}
    assert not check.through_make
    (function,) = check.functions
    assert (function.file, function.name) == (WATCH, "watch_filter")
    assert function.instructions_before
    assert function.instructions_after


async def test_a_patch_that_does_not_compile_gives_its_errors(checks: Checks) -> None:
    check = await checks.single(edits((WATCH, "return 0;", "return zero;")))
    assert check.outcome == "does_not_compile"
    assert files(check) == {WATCH: ("does_not_compile", 1, 1)}
    (error, *_) = check.diagnostics
    assert (error.file, error.line, error.severity) == (WATCH, 13, "error")
    assert "'zero' undeclared" in error.message
    assert check.reason == f"{WATCH}:13: {error.message}"
    assert "return zero;" in check.output
    assert check.functions[0].instructions_after is None


async def test_one_that_does_not_apply_shows_the_nearest_context(checks: Checks) -> None:
    hunk = "@@ -9,2 +9,2 @@\n-\tif (type >= WATCH_NR)\n+\tif (0)\n \t\treturn -1;\n"
    diff = f"--- a/{WATCH}\n+++ b/{WATCH}\n{hunk}"
    check = await checks.single(Patch(name="stale", diff=diff))
    assert check.outcome == "does_not_apply"
    assert "hunk 1 of kernel/watch_queue.c" in check.reason
    assert "+\tif (type >= WATCH_TYPE__NR)" in check.reason
    assert check.details["reason"] == "patch_does_not_apply"
    assert (check.details["file"], check.details["hunk"]) == (WATCH, 1)


@pytest.mark.thorough
async def test_no_kernel_is_compiled_for_patches_that_do_not_apply(
    checks: Checks, tmp_path: Path
) -> None:
    suite = suite_cache(tmp_path / "suite")
    checks.checker = Checker(suite, tmp_path / "suite")
    good, typo = edits((WATCH, "return 0;", "return 1;")), edits(("kernel/wach.c", "x", "y"))
    words = Patch(name="words", diff="I would change a.c\n")
    for _ in range(2):  # the second time from memos
        result = await checks.result(typo, words)
        assert [check.outcome for check in result.patches] == ["does_not_apply", "refused"]
        assert "kernel/wach.c" in result.patches[0].reason
        assert (result.tree, result.kernel_release, suite.held()) == ("", "", [])
    # Without the base, this one would not apply either.
    base = [edits((WATCH, "return 0;", "return 2;"))]
    late = edits((WATCH, "return 2;", "return 3;"))
    result = await checks.result(typo, late, good, base=base)
    outcomes = [check.outcome for check in result.patches]
    assert outcomes == ["does_not_apply", "compiles", "does_not_apply"]
    assert result.tree
    assert suite.held()


async def test_one_bad_patch_never_spoils_the_others(checks: Checks) -> None:
    deep = "/".join(["x" * 200] * 4)
    result = await checks.result(
        Patch(diff="--- a/../../etc/passwd\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n"),
        Patch(diff="this is no diff"),
        added("Makefile/x.h", "int x;"),
        added(f"{deep}/{'y' * 300}.h", "int x;"),
        edits((WATCH, "return 0;", "return 1;")),
    )
    outcomes = [check.outcome for check in result.patches]
    assert outcomes == ["refused", "refused", "does_not_apply", "refused", "compiles"]
    assert result.patches[0].details["reason"] == "unsafe_patch"


async def test_patches_do_not_see_each_other(checks: Checks) -> None:
    result = await checks.result(
        edits((WATCH, "return 0;", "return zero;")),
        edits((WATCH, "static unsigned char", "int zero;\nstatic unsigned char")),
        edits((WATCH, "return 0;", "return 2;")),
    )
    outcomes = [check.outcome for check in result.patches]
    assert outcomes == ["does_not_compile", "compiles", "compiles"]


async def test_a_file_that_the_config_does_not_compile_is_not_built(checks: Checks) -> None:
    check = await checks.single(edits(("lib/extra.c", "= 1", "= nonsense")))
    assert (check.outcome, files(check)) == ("not_built", {"lib/extra.c": ("not_built", 0, 0)})


AS_MODULE = config("CONFIG_BASE=y\nCONFIG_EXTRA=m\n")


async def test_a_module_is_compiled_as_one(checks: Checks) -> None:
    good, bad = edits(("lib/extra.c", "= 1", "= 2")), edits(("lib/extra.c", "= 1", "= none"))
    fine, broken = (await checks.result(good, bad, config=AS_MODULE)).patches
    assert (fine.outcome, files(fine)) == ("compiles", {"lib/extra.c": ("compiles", 1, 1)})
    assert broken.outcome == "does_not_compile"


async def test_what_only_make_can_follow_makes_modules_too(checks: Checks) -> None:
    patch = edits(
        ("Makefile", "SUBLEVEL = 0", "SUBLEVEL = 1"), ("lib/extra.c", "= 1", "= nonsense")
    )
    check = await checks.single(patch, config=AS_MODULE)
    assert (check.outcome, check.through_make) == ("does_not_compile", True)


async def test_a_patch_is_not_built_if_one_of_its_files_is_not(checks: Checks) -> None:
    patch = edits((WATCH, "return 0;", "return 1;"), ("lib/extra.c", "= 1", "= 2"))
    assert (await checks.single(patch)).outcome == "not_built"


async def test_documentation_beside_code_does_not_count(checks: Checks) -> None:
    diff = (
        "--- /dev/null\n+++ b/Documentation/watch.rst\n@@ -0,0 +1 @@\n+Words.\n"
        "--- a/fs/open.c\n+++ b/fs/open.c\n@@ -6 +6 @@\n-\t\treturn -1;\n+\t\treturn -2;\n"
    )
    check = await checks.single(Patch(diff=diff))
    assert check.outcome == "compiles"
    assert files(check)["Documentation/watch.rst"] == ("not_built", 0, 0)


async def test_a_header_compiles_every_object_that_depends_on_it(checks: Checks) -> None:
    patch = edits((HEADER, "int fork_one(int parent);", "int fork_one(int p);"))
    check = await checks.single(patch)
    assert files(check) == {HEADER: ("compiles", 4, 4)}
    assert not check.through_make


async def test_dependents_of_a_header_are_limited(checks: Checks) -> None:
    """The patch's own files come first."""
    patch = edits(
        (HEADER, "int watch_filter(int type);", "long watch_filter(int type);"),
        (WATCH, "return 0;", "return 1;"),
    )
    check = await checks.single(patch, dependents=1)
    assert files(check)[HEADER] == ("does_not_compile", 1, 4)
    assert files(check)[WATCH] == ("does_not_compile", 1, 1)
    assert "conflicting types for 'watch_filter'" in check.reason


async def test_a_c_file_that_another_includes_counts_like_a_header(checks: Checks) -> None:
    check = await checks.single(edits(("kernel/sched.c", "times--", "times++")))
    assert files(check) == {"kernel/sched.c": ("compiles", 1, 1)}
    (function,) = check.functions
    assert function.name == "__do_sys_yield"
    assert function.instructions_after


async def test_a_header_that_the_patch_adds_depends_on_who_includes_it(checks: Checks) -> None:
    diff = (added("include/linux/new.h", "#define NEW 1").diff or "") + (
        f"--- a/{WATCH}\n+++ b/{WATCH}\n@@ -1 +1,2 @@\n #include <linux/kernel.h>\n"
        "+#include <linux/new.h>\n"
    )
    check = await checks.single(Patch(diff=diff))
    assert files(check)["include/linux/new.h"] == ("compiles", 1, 1)
    alone = await checks.single(added("include/linux/new.h", "#define NEW 1"))
    assert files(alone)["include/linux/new.h"] == ("not_built", 0, 0)


async def test_a_header_of_what_make_generates_goes_through_make(checks: Checks) -> None:
    check = await checks.single(edits(("include/linux/limits.h", "4096", "8192")))
    assert (check.outcome, check.through_make) == ("compiles", True)
    assert files(check) == {"include/linux/limits.h": ("compiles", 1, 1)}
    broken = await checks.single(edits(("include/linux/limits.h", "4096", "no_number")))
    assert broken.outcome == "does_not_compile"
    assert "no_number" in broken.reason


async def test_an_assembly_file_and_its_header_go_through_make(checks: Checks) -> None:
    entry = config("CONFIG_ENTRY=y\n")
    for patch in (
        edits(("lib/entry.S", "ret", "nop\n\tret")),
        edits(("include/linux/entry.h", "1", "2")),
    ):
        check = await checks.single(patch, config=entry)
        assert (check.outcome, check.through_make) == ("compiles", True)
    broken = await checks.single(edits(("lib/entry.S", "ret", "return")), config=entry)
    assert (broken.outcome, broken.files[0].outcome) == ("does_not_compile",) * 2


async def test_a_makefile_and_the_file_that_it_adds_go_through_make(checks: Checks) -> None:
    patch = (added("kernel/new.c", "int new_one(void) { return 1; }").diff or "") + (
        "--- a/Makefile\n+++ b/Makefile\n@@ -7 +7 @@\n"
        "-obj-y := kernel/fork.o kernel/watch_queue.o fs/open.o lib/string.o\n"
        "+obj-y := kernel/fork.o kernel/watch_queue.o fs/open.o lib/string.o kernel/new.o\n"
    )
    check = await checks.single(Patch(diff=patch))
    assert (check.outcome, check.through_make) == ("compiles", True)
    assert files(check)["kernel/new.c"] == ("compiles", 1, 1)
    new = {each.name: each for each in check.functions}["new_one"]
    assert (new.instructions_before, bool(new.instructions_after)) == (None, True)


async def test_a_c_file_that_no_makefile_names_is_not_built(checks: Checks) -> None:
    check = await checks.single(added("kernel/lonely.c", "int lonely;"))
    assert files(check) == {"kernel/lonely.c": ("not_built", 0, 0)}


async def test_a_makefile_that_breaks_make_does_not_compile(checks: Checks) -> None:
    check = await checks.single(edits(("Makefile", "VERSION = 6", "VERSION = 6\nendif")))
    assert (check.outcome, check.files[0].outcome) == ("does_not_compile",) * 2
    assert "extraneous 'endif'" in check.reason


async def test_a_warning_that_the_patch_adds_is_told_and_old_ones_are_not(checks: Checks) -> None:
    old = (WATCH, "static unsigned char", "static int unused_before;\nstatic unsigned char")
    new = (WATCH, "return 0;", "int unused_now;\n\treturn 0;")
    base = [edits(old)]
    check = await checks.single(edits(new), base=base)
    assert check.outcome == "compiles"
    (warning,) = check.diagnostics
    assert (warning.severity, "unused_now" in warning.message) == ("warning", True)
    assert "unused_now" in check.output
    moved = await checks.single(edits((WATCH, "#define WATCH", "\n\n#define WATCH")), base=base)
    assert moved.diagnostics == []


async def test_a_warning_does_not_compile_where_the_config_says_so(checks: Checks) -> None:
    patch = edits((WATCH, "return 0;", "int unused;\n\treturn 0;"))
    check = await checks.single(patch, config=config("CONFIG_WERROR=y\n"))
    assert check.outcome == "does_not_compile"
    assert "unused" in check.reason


async def test_the_base_lies_below_every_patch_and_is_what_counts_as_before(checks: Checks) -> None:
    base = [edits((WATCH, "type >= WATCH_TYPE__NR", "type >= 100 || type == 50"))]
    fix = edits((WATCH, "type >= 100 || type == 50", "type >= WATCH_TYPE__NR"))
    unfixed = await checks.single(edits((WATCH, "type >= WATCH_TYPE__NR", "type >= 100")))
    assert unfixed.outcome == "compiles"
    check = await checks.single(fix, base=base)
    assert check.outcome == "compiles"
    (function,) = check.functions
    assert (function.instructions_before or 0) > (function.instructions_after or 0) > 0
    assert function.instructions_after == unfixed.functions[0].instructions_before


async def test_a_base_that_does_not_compile_is_the_steps_own_failure(checks: Checks) -> None:
    base = [edits((WATCH, "return 0;", "return zero;"))]
    with pytest.raises(UserError) as caught:
        await checks.single(edits((WATCH, "filter[8]", "filter[9]")), base=base)
    assert caught.value.message.startswith(f"the base does not compile: {WATCH}:13")


async def test_the_same_check_is_memoised_unless_fresh(checks: Checks) -> None:
    patch = edits((WATCH, "return 0;", "return 1;"))
    first = await checks.result(patch)
    again = await checks.result(patch)
    differs = {"memoised": True, "seconds": 0.0}
    assert again.patches == [first.patches[0].model_copy(update=differs)]
    assert again.kernel_release == first.kernel_release
    assert not (await checks.single(patch, cache="fresh")).memoised
    assert not (await checks.single(patch, dependents=3)).memoised


async def test_of_many_patches_only_the_new_ones_are_checked(checks: Checks) -> None:
    known, new = (edits((WATCH, "return 0;", f"return {number};")) for number in (1, 2))
    await checks.single(known)
    result = await checks.result(new, known)
    assert [check.memoised for check in result.patches] == [False, True]
    assert [check.outcome for check in result.patches] == ["compiles"] * 2


async def test_another_worker_answers(checks: Checks, new_run: NewRun, tmp_path: Path) -> None:
    """It answers from the first one's result and does not fetch the entry."""
    patch = edits((WATCH, "return 0;", "return 3;"))
    first = await checks.single(patch, cache="refresh")
    elsewhere = tmp_path / "elsewhere"
    other = Checks(Checker(suite_cache(elsewhere), elsewhere), new_run, checks.spec)
    again = await other.single(patch)
    assert (again.memoised, again.functions) == (True, first.functions)
    assert not list((elsewhere / "suitecache").glob("*/image.squashfs"))


@pytest.mark.parametrize("ways", [("mount", "squashfuse"), ("squashfuse",), ()])
async def test_a_check_finds_the_same_however_the_tree_comes(
    checks: Checks, new_run: NewRun, tmp_path: Path, ways: tuple[Way, ...]
) -> None:
    if "squashfuse" in ways[:1] and shutil.which("squashfuse") is None:
        pytest.skip("squashfuse is not installed")
    patches = [
        edits((WATCH, "return 0;", "int unused;\n\treturn 1;")),
        edits((WATCH, "return 0;", "return zero;")),
        edits((HEADER, "int fork_one(int parent);", "int fork_one(int p);")),
    ]
    cache = tmp_path / "elsewhere"
    other = Checks(Checker(suite_cache(cache, ways=ways), cache), new_run, checks.spec)
    elsewhere, here = [
        [check.model_copy(update={"seconds": 0.0}) for check in result.patches]
        for result in [await kind.result(*patches, cache="fresh") for kind in (other, checks)]
    ]
    assert elsewhere == here


async def test_a_removed_function_has_no_instructions_after(checks: Checks) -> None:
    text = "int fork_one(int parent)\n{\n\treturn parent + 1;\n}\n"
    check = await checks.single(
        edits(("kernel/fork.c", text, ""), ("kernel/fork.c", " + fork_one(0)", ""))
    )
    removed = {each.name: each for each in check.functions}["fork_one"]
    assert removed.instructions_before
    assert removed.instructions_after is None


def renamed(old: str, new: str, kept: str) -> str:
    git = f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
    return git + (
        "diff --git a/Makefile b/Makefile\n--- a/Makefile\n+++ b/Makefile\n@@ -7 +7 @@\n"
        "-obj-y := kernel/fork.o kernel/watch_queue.o fs/open.o lib/string.o\n"
        f"+obj-y := kernel/fork.o kernel/watch_queue.o {kept} lib/string.o\n"
    )


async def test_a_file_that_is_renamed_or_removed_is_not_missed(checks: Checks) -> None:
    check = await checks.single(Patch(diff=renamed("fs/open.c", "fs/opened.c", "fs/opened.o")))
    assert check.outcome == "compiles"
    assert files(check)["fs/open.c"][0] == "removed"
    assert files(check)["fs/opened.c"] == ("compiles", 1, 1)
    still = await checks.single(Patch(diff=renamed("fs/open.c", "fs/opened.c", "fs/open.o")))
    assert still.outcome == "does_not_compile"


async def test_a_file_that_nothing_needs_may_be_removed(checks: Checks) -> None:
    text = (ROOT / "tests/fakelinux/fs/open.c").read_text().splitlines(keepends=True)
    body = "".join(f"-{line}" for line in text)
    gone = f"--- a/fs/open.c\n+++ /dev/null\n@@ -1,{len(text)} +0,0 @@\n{body}"
    without = renamed("x", "y", "").partition("rename to y\n")[2]
    check = await checks.single(Patch(diff=gone + without))
    assert (check.outcome, files(check)["fs/open.c"][0]) == ("compiles", "removed")
    assert (await checks.single(Patch(diff=gone))).outcome == "does_not_compile"
    extra = "--- a/lib/extra.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-int extra = 1;\n"
    unused = await checks.single(Patch(diff=extra))
    assert (unused.outcome, files(unused)["lib/extra.c"][0]) == ("not_built", "not_built")


HUNK = "@@ -9,2 +9,2 @@\n-\tif (type >= WATCH_TYPE__NR)\n+\tif (type > 100)\n \t\treturn -1;\n"


@pytest.mark.parametrize("path", ["new/linux/kernel/watch_queue.c", "watch_queue.c"])
async def test_a_misplaced_file_is_the_only_one_with_its_lines(checks: Checks, path: str) -> None:
    check = await checks.single(Patch(diff=f"--- old/{path}\n+++ new/{path}\n{HUNK}"))
    assert check.outcome == "compiles"
    assert files(check) == {WATCH: ("compiles", 1, 1)}
    assert any(note.endswith(f"means {WATCH}") for note in check.notes)


async def test_a_copy_is_built_by_nothing_until_a_makefile_names_it(checks: Checks) -> None:
    copy = (
        f"diff --git a/{WATCH} b/kernel/copy.c\ncopy from {WATCH}\ncopy to kernel/copy.c\n"
        f"--- a/{WATCH}\n+++ b/kernel/copy.c\n{HUNK}"
    )
    check = await checks.single(Patch(diff=copy))
    assert (check.outcome, list(files(check))) == ("not_built", ["kernel/copy.c"])


async def test_a_renamed_file_needs_its_makefile(checks: Checks) -> None:
    renamed = (
        f"diff --git a/{WATCH} b/kernel/watch.c\nrename from {WATCH}\nrename to kernel/watch.c\n"
        f"--- a/{WATCH}\n+++ b/kernel/watch.c\n{HUNK}"
    )
    makefile = (
        "--- a/Makefile\n+++ b/Makefile\n@@\n"
        "-obj-y := kernel/fork.o kernel/watch_queue.o fs/open.o lib/string.o\n"
        "+obj-y := kernel/fork.o kernel/watch.o fs/open.o lib/string.o\n"
    )
    alone, whole = (
        await checks.result(Patch(name="alone", diff=renamed), Patch(diff=renamed + makefile))
    ).patches
    assert alone.outcome == "does_not_compile"
    assert "kernel/watch_queue.o any more: change the makefile" in alone.reason
    assert whole.outcome == "compiles"
    assert files(whole)["kernel/watch.c"] == ("compiles", 1, 1)
