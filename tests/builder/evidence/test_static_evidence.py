"""What a build says of a patch on trial: its kernel against the one without it."""

from pathlib import Path

import pytest

from kgym.api.steps import BuildResult, BuildSpec, Edit, Finding, KernelConfig, Patch, Severity
from kgym.bugs import bundle
from kgym.source import patching
from kgym_builder.evidence import static_evidence
from kgym_builder.evidence.patch_review import on_trial, review
from kgym_builder.evidence.removed_code import amputations
from kgym_builder.evidence.static_evidence import MOST_OBJECTS
from kgym_builder.kbuild.working_tree import Tree
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


@pytest.mark.thorough
async def test_what_only_the_object_code_shows_is_found(linux: FakeLinux) -> None:
    pasted = "#define PASTED(a, b) a##b\nvoid PASTED(kasan_dis, able_current)(void)"
    declared = Edit(
        file=FILE,
        original="#define WATCH_TYPE__NR 2",
        replacement=f"#define WATCH_TYPE__NR 2\n{pasted} __attribute__((weak));",
    )
    call = Edit(
        file=FILE, original="\t\treturn -1;", replacement="\t\tPASTED(kasan_dis, able_current)();"
    )
    finding = reasons(await linux.build(trial(linux.spec, declared, call)))["unchecked_access"]
    assert (finding.severity, finding.file) == (Severity.BLOCKING, FILE)
    assert "`kasan_disable_current`" in finding.message


@pytest.mark.parametrize("files", [[FILE], ["fs/open.c"]])
async def test_code_that_a_limit_leaves_uncompared_stands_in_the_way(
    linux: FakeLinux, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.setattr(static_evidence, "_MOST_BYTES", 100)
    spec = trial(linux.spec, FIX).model_copy(update={"files": files})
    finding = reasons(await linux.build(spec))["not_compared"]
    assert (finding.severity, finding.file) == (Severity.BLOCKING, FILE)
    assert "too large" in finding.message


async def test_what_was_found_is_remembered_with_the_build(linux: FakeLinux) -> None:
    exit_ = Edit(file=FILE, original="\t\treturn -1;", replacement="\t\tschedule_timeout(1);")
    declared = Edit(
        file=FILE, original="#define WATCH_TYPE__NR 2", replacement="#define WATCH_TYPE__NR 2\n"
        "static void schedule_timeout(int ms) { (void)ms; }"
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
    assert by_reason["not_compared"].severity is Severity.BLOCKING


PATH = "kernel/watch_queue.c"
CHECK = "\tif (type >= WATCH_TYPE__NR)\n\t\treturn -1;\n"


def cut(name: str) -> Patch:
    return Patch(name=name, edits=[Edit(file=PATH, original=CHECK, replacement="")])


async def test_a_build_reviews(linux: FakeLinux) -> None:
    """It reviews the patches that it is asked to review, and no others."""
    other = Patch(name="other", edits=[Edit(file=PATH, original="[8]", replacement="[16]")])
    unasked = linux.spec.model_copy(update={"patches": [other, cut("cut")]})
    assert (await linux.build(unasked)).findings == []
    run = linux.new_run(unasked.model_copy(update={"review": ["cut"]}))
    (finding,) = (await linux.builder(run)).findings
    assert (finding.check, finding.reason, finding.file) == ("amputation", "check_removed", PATH)
    assert "check_removed" in (run.folder / "step.log").read_text()


def test_a_review_of_no_patch_is_refused(fake_build: BuildSpec) -> None:
    with pytest.raises(ValueError, match="names no patch: other"):
        BuildSpec.model_validate({**fake_build.model_dump(), "review": ["other"]})


@pytest.mark.parametrize("form", ["diff", "edits"])
async def test_the_kernels_checkpatch_looks_at_the_style(
    kernel_source: Path, tmp_path: Path, form: str
) -> None:
    before = (kernel_source / PATH).read_text()
    original = "\t    filter.nr_filters > 16 ||\n"
    replacement = "\t    filter.nr_filters>16||   \n"
    number = before[: before.index(original)].count("\n") + 1
    edits = Patch(name="it", edits=[Edit(file=PATH, original=original, replacement=replacement)])
    diff = Patch(
        name="it",
        diff=f"--- a/{PATH}\n+++ b/{PATH}\n@@ -{number} +{number} @@\n-{original}+{replacement}",
    )
    patch = diff if form == "diff" else edits
    tree = Tree((kernel_source,), tmp_path / "tree")
    trial = await on_trial(tree, [patch], ["it"])
    findings = await review(tree, trial, [], checkpatch=True)
    assert await review(tree, trial, [PATH], checkpatch=False) == []
    assert {"TRAILING_WHITESPACE", "SPACING"} <= {finding.reason for finding in findings}
    assert {finding.check for finding in findings} == {"checkpatch"}
    assert {(finding.file, finding.line) for finding in findings} == {(PATH, number)}


@pytest.mark.parametrize("name", bundle.names())
def test_no_known_fix_cuts_anything_off(kernel_source: Path, name: str) -> None:
    (regress,) = bundle.load(name).build.patches
    fixed = {path: (kernel_source / path).read_bytes() for path in patching.files(regress)}
    changes = patching.apply(regress, fixed).changes
    broken = {change.path: change.content for change in changes if change.content}
    assert amputations(broken, fixed) == []
