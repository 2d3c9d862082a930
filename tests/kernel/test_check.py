"""Checks on the real kernel: the shipped bugs' fixes, and what goes wrong with patches."""

from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import CheckSpec, Edit, Patch, StepSpec
from kgym.bugs import bundle
from tests.conftest import ROOT, kgym
from tests.kernel.machine import submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BUG = "watch-queue-filter"


def checked(*patches: Patch, **changes: Any) -> list[dict[str, Any]]:
    """Check patches on the shipped kernel; return what is said of each."""
    build = bundle.load(BUG).build
    spec: StepSpec = CheckSpec(
        source=build.source, config=build.config, patches=list(patches), **changes
    )
    answers: list[dict[str, Any]] = submitted(spec)["steps"][0]["result"]["patches"]
    return answers


def edit(file: str, original: str, replacement: str) -> Patch:
    return Patch(edits=[Edit(file=file, original=original, replacement=replacement)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", bundle.names())
def test_the_fix_of_a_shipped_bug_compiles_by_kbuilds_own_command(name: str) -> None:
    shipped = bundle.load(name)
    assert shipped.fix is not None
    (answer,) = checked(shipped.fix, base=shipped.build.patches)
    assert (answer["outcome"], answer["through_make"]) == ("compiles", False), answer
    assert {file["path"] for file in answer["files"]} <= set(shipped.file.files)
    assert answer["functions"]


def test_a_patch_file_is_checked_on_the_kernel_that_has_the_bug(tmp_path: Path) -> None:
    patch = tmp_path / "wrong.patch"
    patch.write_text(
        "--- a/kernel/watch_queue.c\n+++ b/kernel/watch_queue.c\n@@ -340,2 +340,3 @@\n"
        " \t    filter.nr_filters > 16 ||\n+\t    no_such_variable ||\n"
        " \t    filter.__reserved != 0)\n"
    )
    status, answer = kgym("check", BUG, patch)
    (patch_answer,) = answer["patches"]
    assert (status, patch_answer["outcome"]) == (1, "does_not_compile")
    assert "'no_such_variable' undeclared" in patch_answer["reason"]


def test_a_system_call_is_counted_in_all_its_parts() -> None:
    patch = edit(
        "fs/read_write.c",
        "SYSCALL_DEFINE3(read, unsigned int, fd, char __user *, buf, size_t, count)\n{\n",
        "SYSCALL_DEFINE3(read, unsigned int, fd, char __user *, buf, size_t, count)\n{\n"
        "\tif (count == 4711)\n\t\treturn -EINVAL;\n",
    )
    (answer,) = checked(patch)
    (function,) = answer["functions"]
    assert function["name"] == "__do_sys_read"
    assert 0 < function["instructions_before"] < function["instructions_after"]


def test_a_header_is_compiled_where_it_is_included_up_to_the_limit() -> None:
    watch = edit("include/linux/watch_queue.h", "#ifdef CONFIG_WATCH_QUEUE", "#if 1")
    (answer,) = checked(watch)
    (file,) = answer["files"]
    assert (answer["outcome"], answer["through_make"]) == ("compiles", False)
    assert file["objects"] == file["dependents"] > 5
    sched = edit("include/linux/sched.h", "extern void scheduler_tick(void);", "struct odd;")
    (answer,) = checked(sched, dependents=8)
    (file,) = answer["files"]
    assert (answer["outcome"], answer["through_make"]) == ("compiles", True)
    assert (file["objects"], file["dependents"] > 900) == (8, True)


@pytest.mark.exhaustive
def test_makefiles_and_kconfig_go_through_make() -> None:
    flags = edit("kernel/Makefile", "obj-y     = fork.o", "CFLAGS_cred.o := -DODD\nobj-y = fork.o")
    help_text = edit("fs/Kconfig", 'menu "File systems"', 'menu "All file systems"')
    missing = edit("kernel/Makefile", "obj-y     = fork.o", "obj-y = fork.o no_such.o")
    for patch, outcome in (
        (flags, "compiles"),
        (help_text, "compiles"),
        (missing, "does_not_compile"),
    ):
        (answer,) = checked(patch)
        assert (answer["outcome"], answer["through_make"]) == (outcome, True), answer


def test_a_driver_that_the_config_leaves_out_is_not_built() -> None:
    (answer,) = checked(edit("drivers/net/dummy.c", "MODULE_LICENSE", "NO_LICENSE"))
    assert answer["outcome"] == "not_built"


SAMPLES = ROOT.parent / "shared" / "data" / "odd_inputs" / "patches"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="not here: shared/data/odd_inputs")
def test_patches_as_people_hand_them_in_have_the_right_answers() -> None:
    """The answers are those of its README."""
    names = sorted(path.name for path in SAMPLES.iterdir() if path.name != "hunk-counts-off.diff")
    _, answer = kgym("check", BUG, *(SAMPLES / name for name in names))
    checks = {check["name"]: check for check in answer["patches"]}
    outcomes = {name: checks[name]["outcome"] for name in names}
    assert outcomes == dict.fromkeys(names, "compiles") | {
        "combined.diff": "refused",
        "copy.diff": "not_built",
    }
    assert "git show -m --first-parent" in checks["combined.diff"]["reason"]
    assert any(
        "means kernel/watch_queue.c" in note for note in checks["two-level-prefix.diff"]["notes"]
    )
    status, answer = kgym("check", "io-uring-no-read", SAMPLES / "hunk-counts-off.diff")
    assert status == 0
    assert "miscounts its lines" in answer["patches"][0]["notes"][0]
