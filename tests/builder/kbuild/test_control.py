"""The object that raises faults on purpose: in every entry, and out of every patch's reach."""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import BuildSpec, CheckSpec, Edit, Patch, PatchOutcome, Severity, TarballSource
from kgym.bugs.detectors import PARTS, WHOLE
from kgym_builder.check.check_step import Checker
from kgym_builder.kbuild import control
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.builder.conftest import FakeLinux
from tests.conftest import ROOT, NewRun
from tests.tables import json_rows

pytestmark = pytest.mark.anyio

LINE = "obj-y += kgym_control.o"


def packed(tree: Path, build: BuildSpec) -> BuildSpec:
    path = tree.with_suffix(".tar")
    subprocess.run(["tar", "-cf", path, "-C", tree.parent, tree.name], check=True, timeout=20)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return build.model_copy(update={"source": TarballSource(url=str(path), sha256=sha256)})


@pytest.fixture
def with_makefile(fake_build: BuildSpec, tmp_path: Path) -> BuildSpec:
    """A build of the small make tree with the Makefile that the object is added to."""
    tree = shutil.copytree(ROOT / "tests" / "fakelinux", tmp_path / "tree")
    (tree / "kernel" / "Makefile").write_text("obj-y += fork.o")  # no newline at its end
    return packed(tree, fake_build)


def edit(file: str, original: str, replacement: str) -> Patch:
    return Patch(edits=[Edit(file=file, original=original, replacement=replacement)])


def added(path: str, line: str) -> Patch:
    return Patch(diff=f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n")


TOUCHES = {
    "its source": edit("kernel/kgym_control.c", "raised on purpose", "raised"),
    "its line": edit("kernel/Makefile", LINE, ""),
    "its place, by something else": added("kernel/kgym_control.S", ".text"),
    "its flags": edit(
        "kernel/Makefile", "obj-y += fork.o\n", "KASAN_SANITIZE_kgym_control.o := n\n"
    ),
    "its name": edit("kernel/fork.c", "int parent", 'int parent /* "kgym_control" */'),
    "its line, with the whole file": Patch(
        diff=f"--- a/kernel/Makefile\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-obj-y += fork.o\n-{LINE}\n"
    ),
}


@pytest.mark.parametrize("patch", TOUCHES.values(), ids=TOUCHES)
async def test_touched_object(linux: FakeLinux, with_makefile: BuildSpec, patch: Patch) -> None:
    """A patch that touches the object is refused, as its author's fault."""
    error = await linux.failure(with_makefile.model_copy(update={"patches": [patch]}))
    assert error.reason == "reserved"
    assert "kgym_control" in error.message


async def test_a_check_refuses_it_as_a_build_does(
    suite: SuiteCache, new_run: NewRun, with_makefile: BuildSpec, tmp_path: Path
) -> None:
    spec = CheckSpec(
        source=with_makefile.source, config=with_makefile.config, patches=list(TOUCHES.values())
    )
    result = await Checker(suite, tmp_path / "cache")(new_run(spec))
    assert {check.details["reason"] for check in result.patches} == {"reserved"}


async def test_a_tree_without_its_makefile_is_left_as_it_is(linux: FakeLinux) -> None:
    patch = edit("kernel/Makefile", LINE, "")
    error = await linux.failure(linux.spec.model_copy(update={"patches": [patch]}))
    assert error.reason == "patch_does_not_apply"


# --- kernels and compilers that do not take it ----------------------------------------------------

# What the object needs of a kernel.
HEADERS = Path(__file__).with_name("include")
MUTEX = (HEADERS / "linux/mutex.h").read_text()
TAKES_ALL: Mapping[str, str] = {}
KERNELS: Mapping[str, tuple[Mapping[str, str], set[str]]] = {
    "as it should be": (TAKES_ALL, set()),
    "another tracepoint": ({"trace/events/sched.h": "int gone;"}, {"watch"}),
    "no such header": ({"linux/debug_locks.h": "#include <none.h>"}, {"watch"}),
    "a header of a header is wrong": ({"linux/wait.h": "#error oh"}, {"hung_task"}),
    "two parts": (
        {"linux/slab.h": "#define kmalloc(s, f) 1 +\n", "linux/wait.h": "int oh"},
        {"kasan", "leak", "hung_task"},
    ),
    "a symbol that is not exported": (
        {"linux/mutex.h": MUTEX + "#define mutex_lock mutex_unlock_nested\n"},
        {"lockdep"},
    ),
    "other parameters": (
        {"linux/moduleparam.h": "struct kernel_param; struct kernel_param_ops { int n; };"},
        {WHOLE},
    ),
    "no panic": ({"linux/bug.h": "#define WARN(condition, ...) ((void)(condition))"}, {WHOLE}),
}

Kernel = Callable[[Mapping[str, str]], BuildSpec]


def with_headers(tree: Path, other: Mapping[str, str]) -> Path:
    shutil.copytree(HEADERS, tree / "include", dirs_exist_ok=True)
    for path, text in other.items():
        (tree / "include" / path).write_text(f"#pragma once\n{text}\n")
    return tree


@pytest.fixture
def kernel(fake_build: BuildSpec, tmp_path: Path) -> Kernel:
    """Make a build of the small make tree as one that the object compiles in."""

    def make(other: Mapping[str, str]) -> BuildSpec:
        tree = shutil.copytree(ROOT / "tests" / "fakelinux", tmp_path / "tree")
        (tree / "kernel" / "Makefile").write_text("# none of its own\n")
        (tree / "kernel" / "locks.c").write_text(
            "#include <linux/mutex.h>\nvoid mutex_unlock(struct mutex *lock) { lock->n--; }\n"
        )
        objects = "$(shell sed -n 's/^obj-y += //p' kernel/Makefile)"
        top = (tree / "Makefile").read_text()
        more = f"obj-y += kernel/locks.o $(addprefix kernel/,{objects})\nobj-$(CONFIG_EXTRA)"
        (tree / "Makefile").write_text(top.replace("obj-$(CONFIG_EXTRA)", more))
        return packed(with_headers(tree, other), fake_build)

    return make


@pytest.mark.thorough
@pytest.mark.parametrize(("other", "lost"), KERNELS.values(), ids=KERNELS)
async def test_what_a_kernel_does_not_take_of_it_is_left_out_and_told(
    linux: FakeLinux, kernel: Kernel, other: Mapping[str, str], lost: set[str]
) -> None:
    run = linux.new_run(kernel(other))
    result = await linux.builder(run)
    assert result.controls_lacking.keys() == lost
    assert all("error" in each or "undefined" in each for each in result.controls_lacking.values())
    system_map = next(artifact for artifact in run.artifacts if artifact.name == "System.map")
    await run.storage.get(system_map.key, run.folder / "map")
    symbols = set(re.findall(r"kgym_control_(\w+)", (run.folder / "map").read_text()))
    assert ("raise" in symbols) == (WHOLE not in lost)
    assert ("locks" in symbols) == (not lost & {WHOLE, "lockdep"})
    log = (run.folder / "step.log").read_text()
    assert all(f"control left out: {part}: " in log for part in lost)


async def test_a_source_without_the_place_for_it_has_none(linux: FakeLinux) -> None:
    result = await linux.build()
    assert result.controls_lacking == {WHOLE: "the source has no kernel/Makefile"}


async def test_a_patch_must_take_what_the_kernel_takes(linux: FakeLinux, kernel: Kernel) -> None:
    spec = kernel({"linux/wait.h": "#error oh"})
    result = await linux.build(on_trial(spec, ESCAPES["its lock"][0]))
    assert result.controls_lacking.keys() == {"hung_task"}
    assert "#error oh" in result.controls_lacking["hung_task"]
    (dropped,) = (finding for finding in result.findings if finding.reason == "control_dropped")
    assert "`lockdep`" in dropped.message


def on_trial(spec: BuildSpec, *edits: Edit) -> BuildSpec:
    patch = Patch(name="fix", edits=list(edits))
    return spec.model_copy(update={"patches": [patch], "review": ["fix"]})


def changed(path: str, original: str, replacement: str) -> Edit:
    return Edit(file=f"include/{path}", original=original, replacement=replacement)


ESCAPES = {
    "its lock": (changed("linux/mutex.h", "void mutex_lock(", "void mutex_lock_once("), "lockdep"),
    "its lock, at the link": (
        changed(
            "linux/mutex.h",
            "static inline void mutex_lock(",
            "void mutex_lock(struct mutex *);\nstatic inline void mutex_take(",
        ),
        "lockdep",
    ),
    "its warning": (changed("linux/bug.h", "WARN(", "WARN_WITH("), "warning"),
    "its tracepoint": (
        changed("trace/events/sched.h", "register_trace_sched_process_exit", "register_none"),
        "watch",
    ),
    "all of it": (changed("linux/bug.h", "void panic(", "void no_panic("), WHOLE),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("edit", "part"), ESCAPES.values(), ids=ESCAPES)
async def test_it_breaks_a_patch(linux: FakeLinux, kernel: Kernel, edit: Edit, part: str) -> None:
    """A patch that does not compile with the object is built, but proves nothing."""
    result = await linux.build(on_trial(kernel(TAKES_ALL), edit))
    assert result.controls_lacking == {}  # as the kernel without the patch has them
    (finding,) = (each for each in result.findings if each.reason == "control_dropped")
    assert finding.severity is Severity.BLOCKING
    assert ("none of the controls" if part == WHOLE else f"`{part}`") in finding.message
    assert "kgym_control.c" in finding.message


@pytest.mark.thorough
async def test_a_patch_is_not_blamed_for_the_kernel(linux: FakeLinux, kernel: Kernel) -> None:
    spec = kernel({"linux/wait.h": "#error oh"})
    result = await linux.build(on_trial(spec, changed("linux/wait.h", "#error oh", "#error no")))
    assert result.controls_lacking.keys() == {"hung_task"}
    assert [finding for finding in result.findings if finding.reason == "control_dropped"] == []


@pytest.mark.thorough
async def test_other_errors_are_the_patchs_fault(linux: FakeLinux, kernel: Kernel) -> None:
    wrong = Edit(file="kernel/fork.c", original="return parent + 1;", replacement="return none;")
    spec = kernel(TAKES_ALL)
    for edits in ([wrong], [wrong, ESCAPES["its lock"][0]]):
        error = await linux.failure(on_trial(spec, *edits))
        assert error.reason == "does_not_compile"
        assert "kernel/fork.c" in error.message


@pytest.mark.thorough
async def test_a_check_leaves_it_out(
    suite: SuiteCache, new_run: NewRun, kernel: Kernel, tmp_path: Path
) -> None:
    build = kernel(TAKES_ALL)
    patches = [Patch(name=name, edits=[edit]) for name, (edit, _) in ESCAPES.items()]
    spec = CheckSpec(source=build.source, config=build.config, patches=patches)
    result = await Checker(suite, tmp_path / "cache")(new_run(spec))
    bad = (PatchOutcome.DOES_NOT_COMPILE, PatchOutcome.OVER_LIMIT)
    assert [check.name for check in result.patches if check.outcome in bad] == []


# --- what compilers say -------------------------------------------------------------------------


def test_its_parts_are_those_that_verdicts_know() -> None:
    parts = re.findall(rb"#ifndef kgym_control_without_(\w+)", control.SOURCE)
    assert {each.decode() for each in parts} == PARTS.keys() - {WHOLE}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_left_out_alone(part: str, tmp_path: Path) -> None:
    tree = with_headers(tmp_path, {"linux/kernel.h": ""})
    for parts in ({part}, PARTS.keys() - {part, WHOLE}):
        done = subprocess.run(
            ["gcc", "-xc", "-std=gnu89", "-O2", "-Wall", "-Werror", "-Iinclude", "-c", "-"],
            input=control.without(parts) + b"#error here\n",
            cwd=tree,
            capture_output=True,
            check=False,
            timeout=60,
        )
        errors = re.findall(r"error: .*", done.stderr.decode())
        assert errors == ["error: #error here"], done.stderr.decode()
        lines = control.SOURCE.count(b"\n") if part != WHOLE or len(parts) > 1 else 1
        assert f":{lines + 1}:" in done.stderr.decode()


def line_of(text: str) -> str:
    return str(control.SOURCE.decode().splitlines().index(text) + 1)


LOCK = line_of("\tmutex_lock(&kgym_control_one);")
TABLE = line_of('\t{ "panic", kgym_control_halt },')
# What compilers and linkers complain of, and the parts that this is about.
SAID = {
    name: ([line.replace("LOCK", LOCK).replace("TABLE", TABLE) for line in lines], set(parts))
    for name, lines, parts in json_rows(__file__, "complaints.jsonl")
}


@pytest.mark.parametrize(("lines", "parts"), SAID.values(), ids=SAID)
def test_complaints_of_compilers_and_linkers(lines: list[str], parts: set[str]) -> None:
    noise = ["scripts/x.c:1:1: warning: kept", "make: *** [Makefile:1: vmlinux] Error 2"]
    assert control.failing([noise[0], *lines, noise[1]]).keys() == parts


@given(st.lists(st.text() | st.sampled_from([each for log, _ in SAID.values() for each in log])))
def test_whatever_is_said_names_parts_in_few_words(lines: list[str]) -> None:
    failing = control.failing(lines)
    assert failing.keys() <= PARTS.keys()
    assert all(0 < len(words) < 2000 for words in failing.values())
