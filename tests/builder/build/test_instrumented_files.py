"""Builds with records, on the small make tree: what is compiled, what is told, what is refused."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import BuildResult, BuildSpec, Edit, KernelConfig, Patch
from kgym.errors import UserError
from kgym.worker.context import StepContext
from tests.builder.conftest import FakeLinux
from tests.conftest import ROOT
from tests.refused import refused

pytestmark = pytest.mark.anyio
TRACING = "CONFIG_FTRACE=y\nCONFIG_ENABLE_DEFAULT_TRACERS=y\n"


@pytest.fixture
def traced(fake_build: BuildSpec) -> BuildSpec:
    """A build whose config can trace already."""
    config = KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\n", TRACING])
    return fake_build.model_copy(update={"config": config})


def instrumented(spec: BuildSpec, *paths: str, **more: object) -> BuildSpec:
    return spec.model_copy(update={"instrument": list(paths), **more})


async def records(run: StepContext, folder: Path) -> list[str]:
    """Run the kernel that was built; return what it recorded."""
    (vmlinux,) = (artifact for artifact in run.artifacts if artifact.name == "vmlinux")
    await run.storage.get(vmlinux.key, folder / "vmlinux")
    (folder / "vmlinux").chmod(0o755)
    done = subprocess.run([folder / "vmlinux"], capture_output=True, timeout=10, check=False)
    return done.stdout.decode().splitlines()


async def test_few_files_are_compiled(linux: FakeLinux, traced: BuildSpec, tmp_path: Path) -> None:
    """From an entry, only the instrumented files are compiled."""
    plain = await linux.build(traced)
    run = linux.new_run(instrumented(traced, "fs/open.c", "kernel/sched.c"))
    result = await linux.builder(run)
    assert (result.tree, result.tree_cached, result.objects_compiled) == (plain.tree, True, 2)
    assert result.trace_symbols == []
    assert [(file.path, file.functions, file.objects) for file in result.instrumented] == [
        ("fs/open.c", 1, 1),
        ("kernel/sched.c", 1, 1),
    ]
    assert await records(run, tmp_path) == ["kgym:fs/open.c:open_file 0"]


async def test_records_follow_patches(linux: FakeLinux, traced: BuildSpec, tmp_path: Path) -> None:
    await linux.build(traced)
    more = "static int twice(int a)\n{\n\treturn a;\n}\n\nint fork_one(int parent)\n{\n\ttwice(1);"
    edit = Edit(file="kernel/fork.c", original="int fork_one(int parent)\n{", replacement=more)
    run = linux.new_run(instrumented(traced, "kernel/fork.c", patches=[Patch(edits=[edit])]))
    result = await linux.builder(run)
    assert result.objects_compiled == 1
    printed = [line.removeprefix("kgym:kernel/fork.c:") for line in await records(run, tmp_path)]
    assert printed == ["main 0", "fork_one 1", "twice 2"]


async def test_a_config_that_cannot_trace_gets_symbols_and_an_entry(linux: FakeLinux) -> None:
    plain = await linux.build()
    result = await linux.build(instrumented(linux.spec, "fs/open.c"))
    assert result.trace_symbols == ["FTRACE", "ENABLE_DEFAULT_TRACERS"]
    assert result.tree != plain.tree
    assert result.dropped_symbols == []


async def test_the_same_records_are_built_once(linux: FakeLinux, traced: BuildSpec) -> None:
    results: list[BuildResult] = []
    for paths in (["fs/open.c"], ["fs/open.c"], ["kernel/fork.c"], []):
        results.append(await linux.build(instrumented(traced, *paths)))
    assert [result.memoised for result in results] == [False, True, False, False]
    assert results[0].instrumented == results[1].instrumented != results[2].instrumented


async def test_untraceable_files_are_left_alone(linux: FakeLinux, traced: BuildSpec) -> None:
    await linux.build(traced)
    paths = ["kernel/trace/trace.c", "kernel/bounds.c", "lib/extra.c"]
    result = await linux.build(instrumented(traced, *paths))
    tracer, bounds, extra = result.instrumented
    assert tracer.reason == "it is the tracer: the ring buffer, trace_printk, its clock"
    assert bounds.reason is not None
    assert (extra.reason, extra.objects, extra.functions) == (None, 0, 0)
    assert result.objects_compiled == 0


async def test_a_missing_file_is_refused_early(linux: FakeLinux, traced: BuildSpec) -> None:
    """The full build has not begun."""
    run = linux.new_run(instrumented(traced, "fs/open.c", "fs/no_such.c"))
    with refused("no_such_file", r"not in the tree: fs/no_such\.c"):
        await linux.builder(run)
    assert run.artifacts == []


async def test_a_file_that_a_patch_removes_is_refused(linux: FakeLinux, traced: BuildSpec) -> None:
    source = (ROOT / "tests" / "fakelinux" / "lib" / "extra.c").read_text().splitlines()
    lines = "".join(f"-{line}\n" for line in source)
    diff = f"--- a/lib/extra.c\n+++ /dev/null\n@@ -1,{len(source)} +0,0 @@\n{lines}"
    spec = instrumented(traced, "lib/extra.c", patches=[Patch(diff=diff)])
    with pytest.raises(UserError, match="extra"):
        await linux.build(spec)


@pytest.mark.parametrize(
    "path",
    ["fs/open.h", "fs/open.S", "/etc/a.c", "../a.c", "fs/../../a.c", "a b.c", 'a".c', "a%s.c"],
)
def test_what_is_no_c_file_of_the_tree_is_refused(fake_build: BuildSpec, path: str) -> None:
    values = {**fake_build.model_dump(), "instrument": [path]}
    with pytest.raises(ValueError, match="cannot be instrumented"):
        BuildSpec.model_validate(values)


async def test_errors_have_the_patched_files_lines(linux: FakeLinux, traced: BuildSpec) -> None:
    edit = Edit(file="fs/open.c", original="return -1;", replacement="return none;")
    spec = instrumented(traced, "fs/open.c", patches=[Patch(edits=[edit])])
    error = await linux.failure(spec)
    diagnostics = error.details["diagnostics"]
    assert isinstance(diagnostics, list)
    assert (diagnostics[0]["file"], diagnostics[0]["line"]) == ("fs/open.c", 6)
