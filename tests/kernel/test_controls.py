"""Kernels that could no longer tell of a crash, each in its own way: none of them proves a fix.

The shipped config has no lockdep, and another kernel takes a full build of 7 minutes, so its
control is not raised here. It was once, with all others, on this kernel with CONFIG_PROVE_LOCKING:
`possible deadlock in kgym_control_locks`, 2026-11-22.
"""

from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import Edit, Patch, Reproducer, ReproduceSpec, StepRef, VmShape
from kgym.bugs import bundle
from tests.kernel.machine import submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# It hides the files by which faults are raised, and forbids what could bring them back.
WILD = Path(__file__).with_name("wild.c").read_text()
CALLS = "#include <unistd.h>\nint main(void) { getppid(); usleep(100000); return 0; }\n"


def edit(file: str, original: str, replacement: str) -> Edit:
    return Edit(file=file, original=original, replacement=replacement)


def on_getppid(statement: str) -> Edit:
    """What a reproducer has the kernel do that calls getppid()."""
    line = "\tpid = task_tgid_vnr(rcu_dereference(current->real_parent));\n"
    return edit("kernel/sys.c", line, f"{line}\t{statement}\n")


NO_REPORT = edit(
    "mm/kasan/report.c",
    "\tstart_report(&irq_flags, true);\n\n\t__memset(&info, 0, sizeof(info));\n"
    "\tinfo.type = KASAN_REPORT_ACCESS;",
    "\tgoto out;\n\tstart_report(&irq_flags, true);\n\n\t__memset(&info, 0, sizeof(info));\n"
    "\tinfo.type = KASAN_REPORT_ACCESS;",
)
NO_HUNG_TASK = edit("kernel/hung_task.c", "\tif (sysctl_hung_task_warnings) {", "\tif (0) {")
UNTOLD_EXIT = edit("kernel/exit.c", "\ttrace_sched_process_exit(tsk);\n", "")
# A return would be none: the compiler knows that this function does not.
PANIC_ENDS_THE_TASK = edit(
    "kernel/panic.c",
    "\tif (panic_on_warn) {\n\t\t/*\n\t\t * This thread",
    "\tif (oops_in_progress >= 0)\n\t\tdo_exit(0);\n"
    "\tif (panic_on_warn) {\n\t\t/*\n\t\t * This thread",
)
CONFIGURED = {
    *("warning", "panic", "oops", "kasan_out_of_bounds", "kasan_use_after_free"),
    *("ubsan", "hung_task"),
}
KERNELS = {
    "KASAN and the hung task detector report nothing": (
        [NO_REPORT, NO_HUNG_TASK],
        {"kasan_out_of_bounds", "kasan_use_after_free", "hung_task"},
    ),
    "KASAN is off for the task of the reproducer": (
        [on_getppid("current->kasan_depth++;")],
        {"kasan_out_of_bounds", "kasan_use_after_free"},
    ),
    "KASAN is off for a task whose end is not told": (
        [on_getppid("current->kasan_depth++;"), UNTOLD_EXIT],
        {"kasan_out_of_bounds", "kasan_use_after_free"},
    ),
    "the console is muted": ([on_getppid("console_loglevel = 0;")], CONFIGURED),
    "a panic ends no more than its task": ([PANIC_ENDS_THE_TASK], {"panic"}),
}


def tried(edits: list[Edit], program: str = CALLS, **shape: Any) -> dict[str, Any]:
    """Run a program on the patched kernel; return the result of the reproduce step."""
    patches = [Patch(edits=edits)] if edits else []
    build = bundle.load("watch-queue-filter").build.model_copy(update={"patches": patches})
    reproduce = ReproduceSpec(
        build=StepRef(step=0),
        reproducer=Reproducer(text=program),
        vm=VmShape(memory=512, append=shape.pop("append", "")),
        time=2,
        evidence=True,
        bundle="none",
        **shape,
    )
    result: dict[str, Any] = submitted(build, reproduce)["steps"][1]["result"]
    return result


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    return {control["name"]: control["outcome"] for control in result["evidence"]["controls"]}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("edits", "silent"), KERNELS.values(), ids=KERNELS)
def test_a_kernel_that_keeps_quiet_proves_nothing(edits: list[Edit], silent: set[str]) -> None:
    result = tried(edits)
    results = outcomes(result)
    assert {name for name, outcome in results.items() if outcome == "silent"} == silent, result
    reported = {name for name, outcome in results.items() if outcome == "reported"}
    assert reported == CONFIGURED - silent
    assert result["verdict"] == "inconclusive"
    assert all(name in result["reason"] for name in silent)
    blocking = [finding for finding in result["findings"] if finding["severity"] == "blocking"]
    assert {finding["check"] for finding in blocking} == {"detector"}
    assert len(blocking) == len(silent)


@pytest.mark.exhaustive
def test_one_instance_is_joined_by_a_clean_one_and_leaks_are_told_where_asked_for() -> None:
    result = tried([], instances=1, append="kmemleak=on panic_on_warn=0 kasan.fault=report")
    assert result["verdict"] == "no_crash", result
    results = outcomes(result)
    assert {name for name, outcome in results.items() if outcome == "reported"} == {
        *CONFIGURED,
        "leak",
    }
    assert results["lockdep"] == "not_configured"
    (clean,) = (
        control
        for control in result["evidence"]["controls"]
        if control["name"] == "kasan_use_after_free"
    )
    assert "clean instance" in clean["detail"]


@pytest.mark.exhaustive
def test_what_a_wild_program_leaves_behind_is_no_fault_of_the_fix() -> None:
    result = tried([], WILD)
    assert result["verdict"] == "no_crash", result
    controls = result["evidence"]["controls"]
    reported = {
        control["name"]: control["detail"]
        for control in controls
        if control["outcome"] == "reported"
    }
    assert reported.keys() == CONFIGURED
    assert all("clean instance" in detail for detail in reported.values()), reported


@pytest.mark.exhaustive
def test_a_patch_that_only_our_object_does_not_compile_with_is_built_and_blocked() -> None:
    """The header knows our object by a macro of its own."""
    line = "#include <linux/binfmts.h>\n"
    trap = "#ifdef LEAKS\n#error oh\n#endif\n"
    patch = Patch(name="fix", edits=[edit("include/trace/events/sched.h", line, line + trap)])
    build = bundle.load("watch-queue-filter").build
    spec = build.model_copy(update={"patches": [patch], "review": ["fix"]})
    result = submitted(spec)["steps"][0]["result"]
    assert result["controls_lacking"] == {}
    (dropped,) = (
        finding for finding in result["findings"] if finding["reason"] == "control_dropped"
    )
    assert dropped["severity"] == "blocking"
    assert "the control `watch` is not in the kernel" in dropped["message"]
