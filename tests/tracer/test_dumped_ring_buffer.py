"""The trace buffer in a dump is read in whatever state the crash left it."""

import pytest

from kgym.errors import UserError
from kgym.trace.records import Trace
from kgym_tracer.dumped_ring_buffer import read_trace
from tests.tracer.fake_dump import NOWHERE, UPDATE, FakeCpu, FakeDump

# Bytes of a record whose counter has one digit, with the event's header.
RECORD = 36


def counters(dump: FakeDump) -> list[int]:
    return read_trace(dump.program()).counter.tolist()


def notes(dump: FakeDump) -> str:
    return "; ".join(read_trace(dump.program()).notes)


@pytest.fixture
def dump() -> FakeDump:
    return FakeDump()


@pytest.fixture
def cpu(dump: FakeDump) -> FakeCpu:
    """The buffer went round: head is 3, and the writer stands on 2."""
    cpu = dump.cpu(pages=4)
    for number, first in ((0, 1), (3, 11), (4, 21), (1, 31), (2, 41)):
        cpu.fill(number, first, first + 1)
    cpu.head(3)
    cpu.point(head=3, commit=2, tail=2)
    return cpu


def test_a_new_buffer_has_all_on_the_reader_page(dump: FakeDump) -> None:
    cpu = dump.cpu()
    cpu.fill(0, 1, 2, 3)
    cpu.fill(1, 9)  # of an earlier round: not committed
    assert counters(dump) == [1, 2, 3]


def test_an_empty_buffer_has_no_records(dump: FakeDump) -> None:
    dump.cpu()
    assert counters(dump) == []


def test_a_buffer_that_went_round_is_read(dump: FakeDump, cpu: FakeCpu) -> None:
    assert counters(dump) == [1, 2, 11, 12, 21, 22, 31, 32, 41, 42]


def test_what_was_read_before_is_left_out(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.read_before(RECORD)
    assert counters(dump)[:2] == [2, 11]


def test_a_reader_page_that_was_read_to_its_end_is_left_out(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.read_before(2 * RECORD)
    assert counters(dump)[:2] == [11, 12]


def test_the_flag_in_the_list_says_where_the_head_is(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.point(head=1)  # it lags behind
    assert counters(dump)[2:4] == [11, 12]


def test_a_head_that_the_writer_was_moving_is_the_head(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.head(3, UPDATE)
    assert counters(dump)[2:4] == [11, 12]


def test_records_behind_the_commit_are_not_read(dump: FakeDump, cpu: FakeCpu) -> None:
    # An interrupt wrote on, and went over to the next page, within a record of what it interrupted.
    cpu.point(commit=1, tail=2)
    cpu.count(committing=1)
    assert counters(dump)[-2:] == [31, 32]
    assert "CPU 0: a record was being written" in notes(dump)


def test_a_list_that_does_not_lead_to_the_writer_ends(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.link(4, 3)
    assert set(counters(dump)) == {1, 2, 11, 12, 21, 22}
    assert "does not lead to the last one" in notes(dump)


def test_a_page_that_is_not_in_the_dump_costs_no_other(dump: FakeDump, cpu: FakeCpu) -> None:
    dump.write(cpu.pages[4] + 40, NOWHERE)
    assert counters(dump) == [1, 2, 11, 12, 31, 32, 41, 42]
    assert "CPU 0: 1 sub-buffers are not in the dump" in notes(dump)


def test_a_cpu_whose_buffer_is_gone_costs_no_other(dump: FakeDump, cpu: FakeCpu) -> None:
    dump.cpus.insert(0, NOWHERE)
    assert len(counters(dump)) == 10
    assert "CPU 0: its buffer cannot be followed" in notes(dump)


def test_cpus_are_merged_in_order_of_time(dump: FakeDump) -> None:
    dump.cpu().fill(0, 1, 4, 5)
    dump.cpu().fill(0, 2, 3, 6)
    trace: Trace = read_trace(dump.program())
    assert trace.counter.tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.cpu.tolist() == [0, 1, 1, 0, 0, 1]


def test_lost_records_are_added_up(dump: FakeDump, cpu: FakeCpu) -> None:
    cpu.count(overrun=5, commit_overrun=2, dropped_events=1)
    dump.cpu().count(overrun=10)
    assert read_trace(dump.program()).lost == 18


@pytest.mark.parametrize("order", [0, 1, 3])
def test_sub_buffers_may_be_larger_than_a_page(order: int) -> None:
    dump = FakeDump(order)
    dump.cpu().fill(0, *range(1, 80 << order))
    assert counters(dump) == list(range(1, 80 << order))


def test_a_kernel_without_a_trace_buffer_is_told(dump: FakeDump) -> None:
    dump.cpu()
    program = dump.program()
    program.set_enabled_object_finders([])
    with pytest.raises(UserError, match="CONFIG_TRACING"):
        read_trace(program)
