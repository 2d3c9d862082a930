"""A real kernel in which everything leaves records: it compiles, boots, and tells of itself."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kgym.api.steps import ReproduceSpec, StepRef, VmShape
from kgym.bugs import bundle
from kgym.trace.trace_files import load
from kgym_builder.suitecache.compiled_trees import INDEX
from tests.conftest import DATA, fetched, kgym
from tests.kernel.machine import FILE, crash_and_dump, submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

BUG = "watch-queue-filter"
UNCLEAR = "not_understood"
FOLDERS = ("fs/", "net/core/", "mm/", "kernel/")
SCRIPT = "ls -R /proc/self >/dev/null\necho c >/proc/sysrq-trigger\n"


def compiled_files() -> list[str]:
    """Return the C files of the folders that the shipped kernel is compiled from."""
    tree = submitted(bundle.load(BUG).build)["steps"][0]["result"]["tree"]
    index = DATA / "cache" / "suitecache" / tree / INDEX
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as database:
        paths = [path for (path,) in database.execute("SELECT path FROM files")]
    return sorted(path for path in paths if path.startswith(FOLDERS) and path.endswith(".c"))


@pytest.mark.exhaustive
def test_everything_in_four_folders_leaves_records_in_one_kernel_that_boots(tmp_path: Path) -> None:
    files = compiled_files()
    assert len(files) > 400
    job = submitted(bundle.load(BUG).build.model_copy(update={"instrument": files}))
    built = job["steps"][0]["result"]
    instrumented = built["instrumented"]
    assert [entry["path"] for entry in instrumented] == files
    assert built["trace_symbols"] == []
    assert built["warnings"] == []
    assert sum(entry["reason"] is None for entry in instrumented) > 390
    assert sum(entry["functions"] for entry in instrumented) > 15_000
    assert [
        entry for file in instrumented for entry in file["skipped"] if entry["reason"] == UNCLEAR
    ] == []

    fetched(job, 0, "bzImage", tmp_path).rename(tmp_path / "kernel")
    fetched(job, 0, "vmlinux", tmp_path)
    shutil.copy("/bin/true", tmp_path / "program")
    shape = VmShape(append="trace_buf_size=32M")
    guest = crash_and_dump(tmp_path, DATA / "cache", script=SCRIPT, shape=shape)
    words = ("--vmlinux", tmp_path / "vmlinux", "--output", tmp_path / "out")
    status, answer = kgym("trace", "extract", guest.dump, *words)
    assert status == 0, answer
    trace = load(tmp_path / "out" / "trace.npz")
    assert len(trace) > 900_000
    seen = {function.file for function in trace.functions if function.file}
    assert {path.split("/")[0] for path in seen} >= {"fs", "mm", "kernel"}
    assert seen <= {entry["path"] for entry in instrumented if entry["functions"]}
    assert len(trace.functions) > 500


@pytest.mark.exhaustive
def test_the_lines_of_a_report_are_those_of_the_source(tmp_path: Path) -> None:
    build = bundle.load(BUG).build
    reproduce = ReproduceSpec(
        build=StepRef(step=0), reproducer=bundle.load(BUG).reproducers[0], instances=1, time=60
    )
    frames = []
    for files in ([], [FILE]):
        job = submitted(build.model_copy(update={"instrument": files}), reproduce)
        report = json.loads(fetched(job, 1, "report-0.json", tmp_path).read_text())
        frames.append(
            [
                (frame["function"], frame["line"])
                for frame in report["frames"]
                if frame["file"] == FILE
            ]
        )
    assert frames[0]
    assert frames[0] == frames[1]
