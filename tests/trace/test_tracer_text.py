"""Text of the tracers becomes records, line by line or side by side."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.errors import UserError
from kgym.trace.records import Function, Trace
from kgym.trace.trace_files import is_dump, load, save
from kgym.trace.tracer_text import LINE, TextParser
from tests.refused import refused
from tests.tables import json_rows

HEAD = """\
# tracer: nop
#
# entries-in-buffer/entries-written: 3/45   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
"""


def parsed(text: str, piece: int = 1 << 20) -> tuple[Trace, TextParser]:
    parser, data = TextParser(), text.encode()
    for start in range(0, len(data), piece):
        parser.feed(data[start : start + piece])
    return parser.trace(), parser


def rows(trace: Trace) -> list[tuple[object, ...]]:
    names = [trace.functions[n].name for n in trace.function.tolist()]
    columns = (trace.time.tolist(), trace.cpu.tolist(), trace.pid.tolist())
    return list(zip(*columns, names, trace.counter.tolist(), strict=True))


def test_the_text_of_tracefs_is_read() -> None:
    trace, parser = parsed(
        f"{HEAD}"
        "           repro-123     [001] .....   100.000001: f: kgym:fs/a.c:f 7\n"
        "      kworker/0:1-9       [000] d..2.   100.000002: g <-f\n"
    )
    assert rows(trace) == [(100_000_001_000, 1, 123, "f", 7), (100_000_002_000, 0, 9, "g", 0)]
    assert trace.functions == (Function("fs/a.c", "f"), Function(None, "g"))
    assert trace.tasks == {123: "repro", 9: "kworker/0:1"}
    assert (trace.lost, parser.other) == (42, 5)


def test_what_trace_cmd_reports_is_read() -> None:
    trace, _ = parsed(
        "cpus=2\n"
        "           repro-123   [001]   100.000001: bprint:               f: kgym:fs/a.c:f 7\n"
        "          <idle>-0     [000] d..2. 100.000002123: function:             g <-- f\n"
    )
    assert rows(trace) == [(100_000_001_000, 1, 123, "f", 7), (100_000_002_123, 0, 0, "g", 0)]


@pytest.mark.parametrize("line", json_rows(__file__, "unusual_lines.jsonl"))
def test_unusual_lines_are_read_too(line: str) -> None:
    assert rows(parsed(f"{line}\n")[0]) == [(100_000_001_000, 1, 123, "f", 7)]


def test_a_clock_that_counts_is_read() -> None:
    trace, _ = parsed("           repro-123     [001] ..... 4711: f: kgym:fs/a.c:f 7\n")
    assert trace.time.tolist() == [4711]


def test_lines_of_lost_events_are_added_up() -> None:
    trace, _ = parsed("CPU:1 [LOST 12 EVENTS]\nCPU:0 [3 EVENTS DROPPED]\n")
    assert trace.lost == 15


def test_messages_of_others_are_left_out_and_counted() -> None:
    trace, parser = parsed(
        "           repro-123     [001] ..... 100.000001: f: hello\n"
        "           repro-123     [001] ..... 100.000002: sched_switch: prev_comm=a ==> b\n"
    )
    assert (len(trace), parser.other) == (0, 2)


def test_a_last_line_without_an_end_is_read() -> None:
    assert len(parsed("           repro-123     [001] ..... 1.000001: kgym:fs/a.c:f 7")[0]) == 1


def test_records_are_put_in_order_of_time() -> None:
    line = "           repro-123     [001] ..... {}.000001: kgym:fs/a.c:f {}\n"
    trace, _ = parsed("".join(line.format(5 - n, n) for n in range(4)))
    assert trace.counter.tolist() == [3, 2, 1, 0]


def test_an_endless_line_takes_no_memory() -> None:
    parser = TextParser()
    for _ in range(100):
        parser.feed(b"x" * 100_000)
        assert len(parser._rest) <= LINE + 1
    assert len(parser.trace()) == 0


records = st.lists(
    st.tuples(
        st.text("abc/:0 -_", min_size=1, max_size=20).map(str.strip).filter(bool),
        st.integers(0, 4_194_304),
        st.integers(0, 1023),
        st.integers(0, 10**9).map(lambda n: n * 1000),
        st.sampled_from(["fs/a.c", "mm/very/long/path/to/a/file.c"]),
        st.sampled_from(["f", "g_2", "a_function_with_a_longer_name"]),
        st.integers(0, (1 << 32) - 1),
        st.sampled_from([" .....", " d..1.", ""]),
    ),
    max_size=60,
)


@given(records, st.integers(1, 300))
@pytest.mark.thorough
def test_what_was_printed_is_read_in_pieces_of_any_size(
    written: list[tuple[str, int, int, int, str, str, int, str]], piece: int
) -> None:
    written = sorted(written, key=lambda record: record[3])
    text, wanted = "", []
    for task, pid, cpu, time, file, name, counter, flags in written:
        stamp = f"{time // 10**9:5}.{time // 1000 % 10**6:06}"
        text += f"{task:>16}-{pid:<7} [{cpu:03}]{flags} {stamp}: {name}: "
        text += f"kgym:{file}:{name} {counter}\n"
        wanted.append((time, cpu, pid, name, counter))
    assert rows(parsed(text, piece)[0]) == wanted


@given(st.binary(max_size=2000), st.integers(1, 64))
def test_any_bytes_are_read_without_error(data: bytes, piece: int) -> None:
    parser = TextParser()
    for start in range(0, len(data), piece):
        parser.feed(data[start : start + piece])
    parser.trace()


def test_the_report_of_a_real_trace_cmd_is_read(tmp_path: Path) -> None:
    # Printed by trace-cmd 3.1.6-1 for a trace.dat with three records of two CPUs.
    (tmp_path / "trace.txt").write_text(
        "cpus=2\n"
        "           repro-7     [000]     0.001000: bprint:               f: kgym:fs/a.c:a 1\n"
        "           other-8     [001]     0.002000: function:             g\n"
        "           repro-7     [000]     0.003000: bprint:               g: kgym:fs/b.c:b 5\n"
    )
    trace = load(tmp_path / "trace.txt")
    assert rows(trace) == [
        (1_000_000, 0, 7, "a", 1),
        (2_000_000, 1, 8, "g", 0),
        (3_000_000, 0, 7, "b", 5),
    ]
    assert trace.tasks == {7: "repro", 8: "other"}


def test_a_trace_dat_is_refused_with_the_way_to_its_text(tmp_path: Path) -> None:
    (tmp_path / "trace.dat").write_bytes(b"\x17\x08\x44tracing6\0")
    with refused("bad_trace", match="trace-cmd report -i"):
        load(tmp_path / "trace.dat")


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
