"""What a build says of a patch on trial: its kernel against the one without it."""

import pytest

from kgym.api.steps import BuildResult, BuildSpec, Edit, Finding, KernelConfig, Patch, Severity
from kgym_builder.evidence.static_evidence import MOST_OBJECTS
from tests.builder.conftest import FakeLinux

pytestmark = pytest.mark.anyio

FILE = "kernel/watch_queue.c"
FIX = Edit(file=FILE, original="type >= WATCH_TYPE__NR", replacement="type < 0 || type >= 2")


def trial(spec: BuildSpec, *edits: Edit) -> BuildSpec:
    patch = Patch(name="fix", edits=list(edits))
    return spec.model_copy(update={"patches": [patch], "review": ["fix"], "files": [FILE]})


def reasons(result: BuildResult) -> dict[str, Finding]:
    return {finding.reason: finding for finding in result.findings}


async def test_an_honest_fix_draws_nothing(linux: FakeLinux) -> None:
    result = await linux.build(trial(linux.spec, FIX))
    assert result.findings == []
    assert {"review", "evidence"} <= result.seconds.keys()


async def test_a_patch_that_is_not_on_trial_costs_nothing(linux: FakeLinux) -> None:
    spec = trial(linux.spec, FIX).model_copy(update={"review": []})
    assert "evidence" not in (await linux.build(spec)).seconds


async def test_a_flag_that_is_lost_is_found_whoever_took_it(linux: FakeLinux) -> None:
    flag = Edit(
        file="Makefile",
        original="ccflags-$(CONFIG_WERROR)",
        replacement="ccflags-y += -fno-sanitize=all\nccflags-$(CONFIG_WERROR)",
    )
    run = linux.new_run(trial(linux.spec, FIX, flag))
    by_reason = reasons(await linux.builder(run))
    assert by_reason["flags_weaker"].severity is Severity.BLOCKING
    assert by_reason["touches_build_system"].file == "Makefile"
    log = (run.folder / "step.log").read_text()
    assert "blocking: detector: flags_weaker: compiled without a sanitizer: fs/open.o" in log
    assert "kernel/watch_queue.o (-fno-sanitize=all)" in log


async def test_a_symbol_of_the_config_that_is_lost_is_found(linux: FakeLinux) -> None:
    config = KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\nCONFIG_FTRACE=y\n"])
    spec = linux.spec.model_copy(update={"config": config})
    lost = Edit(file="Kconfig", original="FTRACE\n", replacement="")
    by_reason = reasons(await linux.build(trial(spec, FIX, lost)))
    assert by_reason["config_weaker"].message == "CONFIG_FTRACE is n, not y"


async def test_what_was_found_is_remembered_with_the_build(linux: FakeLinux) -> None:
    exit_ = Edit(file=FILE, original="\t\treturn -1;", replacement="\t\tmsleep(1);")
    declared = Edit(
        file=FILE, original="#define WATCH_TYPE__NR 2", replacement="#define WATCH_TYPE__NR 2\n"
        "static void msleep(int ms) { (void)ms; }"
    )  # fmt: skip
    spec = trial(linux.spec, exit_, declared)
    first, second = [await linux.build(spec) for _ in range(2)]
    assert (first.memoised, second.memoised) == (False, True)
    assert first.findings == second.findings
    assert "sleeps" in reasons(first)
    # Where the fix may have to go is part of the question.
    elsewhere = spec.model_copy(update={"files": ["fs/open.c"]})
    assert "outside_files" in reasons(await linux.build(elsewhere))


@pytest.mark.thorough
async def test_a_patch_that_hides_among_many_files_stands_in_its_own_way(linux: FakeLinux) -> None:
    diff = "".join(
        f"--- /dev/null\n+++ b/lib/many{number}.c\n@@ -0,0 +1 @@\n+int many{number};\n"
        for number in range(MOST_OBJECTS + 1)
    )
    made = Edit(
        file="Makefile",
        original="obj-$(CONFIG_EXTRA)",
        replacement="obj-y += $(patsubst %.c,%.o,$(wildcard lib/many*.c))\nobj-$(CONFIG_EXTRA)",
    )
    patches = [Patch(name="many", diff=diff), Patch(name="make", edits=[made])]
    spec = linux.spec.model_copy(update={"patches": patches, "review": ["many", "make"]})
    by_reason = reasons(await linux.build(spec))
    assert by_reason["objects_not_looked_at"].severity is Severity.BLOCKING
