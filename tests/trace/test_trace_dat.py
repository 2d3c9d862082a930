"""`trace.dat` becomes records, by what the file says of itself."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.errors import UserError
from kgym.trace.records import Function
from kgym.trace.trace_dat import parse
from kgym.trace.trace_files import load
from tests.trace.buffer import Buffer, bprint, fn
from tests.trace.trace_dat import header

A, B = 0xFFFFFFFF82000000, 0xFFFFFFFF82000040
F, G, END = 0xFFFFFFFF81000000, 0xFFFFFFFF81000100, 0xFFFFFFFF81000200
FORMATS = {A: "kgym:fs/a.c:a %u", B: "kgym:fs/b.c:b %u"}


def whole(version: int = 6) -> bytes:
    first, second = Buffer(), Buffer()
    first.event(1_000_000, bprint(7, A, 1, ip=F + 4))
    first.event(3_000_000, bprint(7, B, 5, ip=G + 4))
    second.event(2_000_000, fn(8, G + 4, F))
    pages = [one.array().tobytes() for one in (first, second)]
    about = {
        "formats": FORMATS,
        "symbols": {F: "f", G: "g", END: "end"},
        "tasks": {7: "repro", 8: "other"},
    }
    return header([len(one) for one in pages], version=version, **about) + b"".join(pages)  # type: ignore[arg-type]


def test_records_of_all_cpus_are_read_with_names_of_functions_and_tasks() -> None:
    trace = parse(whole())
    assert [trace.functions[n] for n in trace.function] == [
        Function("fs/a.c", "a"), Function(None, "g"), Function("fs/b.c", "b"),
    ]  # fmt: skip
    assert trace.time.tolist() == [1_000_000, 2_000_000, 3_000_000]
    assert (trace.cpu.tolist(), trace.pid.tolist()) == ([0, 1, 0], [7, 8, 7])
    assert trace.counter.tolist() == [1, 0, 5]
    assert trace.tasks == {7: "repro", 8: "other"}


def test_another_version_is_refused_with_the_way_to_convert_it() -> None:
    with pytest.raises(UserError, match="trace-cmd convert --file-version 6"):
        parse(whole(version=7))


@given(st.integers(0, len(whole()) - 8192 - 1))
def test_a_header_that_is_cut_short_is_an_error_of_the_user(size: int) -> None:
    with pytest.raises(UserError) as caught:
        parse(whole()[:size])
    assert caught.value.reason == "bad_trace"


@given(st.integers(0, len(whole()) - 1), st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused(place: int, value: int) -> None:
    data = bytearray(whole())
    data[place] = value
    with contextlib.suppress(UserError):
        parse(bytes(data))


@pytest.mark.skipif(shutil.which("trace-cmd") is None, reason="trace-cmd is not installed")
def test_trace_cmd_reads_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "trace.dat").write_bytes(whole())
    argv = ["trace-cmd", "report", "-i", str(tmp_path / "trace.dat")]
    done = subprocess.run(argv, check=True, capture_output=True, timeout=60)
    (tmp_path / "trace.txt").write_bytes(done.stdout)
    ours, theirs = load(tmp_path / "trace.dat"), load(tmp_path / "trace.txt")
    assert [ours.functions[n] for n in ours.function] == [
        theirs.functions[n] for n in theirs.function
    ]
    for name in ("cpu", "pid", "counter"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
    assert (ours.time // 1000 == theirs.time // 1000).all()
    assert ours.tasks == theirs.tasks
