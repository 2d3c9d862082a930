"""Traces in files: what was written is read, and what is none is refused."""

from pathlib import Path

import numpy as np
import pytest

from kgym.errors import UserError
from kgym.trace.records import Function, Trace
from kgym.trace.trace_files import is_dump, load, save
from tests.refused import refused

TRACE = Trace.of(
    [(5, 0, 7, 0, 1), (6, 1, 8, 1, 2)],
    [Function("fs/a.c", "f"), Function(None, "g")],
    tasks={7: "repro"},
    lost=3,
    notes=("clock: trace_clock_local",),
)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(TRACE, tmp_path / "trace.npz")
    read = load(tmp_path / "trace.npz")
    for name, dtype in Trace.COLUMNS:
        assert getattr(read, name).tolist() == getattr(TRACE, name).tolist()
        assert getattr(read, name).dtype == dtype
    assert (read.functions, read.tasks, read.lost, read.notes) == (
        TRACE.functions, TRACE.tasks, TRACE.lost, TRACE.notes,
    )  # fmt: skip


def test_a_function_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    bad = Trace.of([(5, 0, 7, 9, 1)], [Function("fs/a.c", "f")])
    save(bad, tmp_path / "trace.npz")
    with pytest.raises(UserError, match="does not list"):
        load(tmp_path / "trace.npz")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "trace.npz", about=np.zeros(1 << 20, np.uint8))
    with pytest.raises(UserError, match="compressed"):
        load(tmp_path / "trace.npz")


@pytest.mark.parametrize("data", [b"PK\x03\x04", b"\x17\x08\x44tracing", b"\x17\x08\x44tracing7\0"])
def test_what_is_no_trace_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(data)
    with refused("bad_trace"):
        load(tmp_path / "trace")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "trace")


@pytest.mark.parametrize(
    ("start", "dump"),
    [(b"\x7fELF", True), (b"KDUMP   ", True), (b"makedumpfile", True), (b"# tracer", False)],
)
def test_a_dump_is_told_from_a_trace_by_its_start(start: bytes, dump: bool, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(start + bytes(100))
    assert is_dump(tmp_path / "one") is dump
