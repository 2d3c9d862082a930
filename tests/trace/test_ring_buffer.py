"""Sub-buffers of the ring buffer become records, whatever state they are in."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.trace.records import Function, Trace
from kgym.trace.ring_buffer import Key, KeyKind, Layout, RingParser
from tests.trace.buffer import Buffer, bprint, fn, other, printed

A, B = 0xFFFFFFFF82000000, 0xFFFFFFFF82000040
NAMES = {A: Function("fs/a.c", "a"), B: Function("fs/b.c", "b")}


def lookup(key: Key) -> Function | None:
    if key.kind is KeyKind.TEXT:
        _, file, name = str(key.value).split(":")
        return Function(file, name)
    return NAMES.get(int(key.value))


def parsed(*buffers: Buffer, layout: Layout | None = None) -> tuple[Trace, RingParser]:
    parser = RingParser(layout or Layout())
    for cpu, buffer in enumerate(buffers):
        parser.feed(cpu, buffer.array())
    return parser.trace(lookup), parser


def rows(trace: Trace) -> list[tuple[int, int, int, str, int]]:
    names = [trace.functions[n].name for n in trace.function]
    columns = (trace.time, trace.cpu, trace.pid, names, trace.counter)
    return [tuple(row) for row in zip(*(np.asarray(c).tolist() for c in columns), strict=True)]


def test_a_bprint_entry_is_a_record_with_its_counter() -> None:
    buffer = Buffer()
    buffer.event(1000, bprint(7, A, 1))
    buffer.event(1010, bprint(7, B, 2))
    trace, _ = parsed(buffer)
    assert rows(trace) == [(1000, 0, 7, "a", 1), (1010, 0, 7, "b", 2)]
    assert trace.functions == (Function("fs/a.c", "a"), Function("fs/b.c", "b"))


def test_entries_of_the_function_tracer_and_printed_text_are_records_too() -> None:
    buffer = Buffer()
    buffer.event(1, fn(7, A, B))
    buffer.event(2, printed(8, "kgym:fs/c.c:c 12\n"))
    buffer.event(3, printed(8, "hello"))
    trace, parser = parsed(buffer)
    assert rows(trace) == [(1, 0, 7, "a", 0), (2, 0, 8, "c", 12)]
    assert parser.counts.other == 1


def test_entries_of_other_kinds_and_unknown_formats_are_counted_and_left_out() -> None:
    buffer = Buffer()
    buffer.event(1, other(7))
    buffer.event(2, bprint(7, 0x1234, 5))
    buffer.event(3, bprint(7, A, 6))
    trace, parser = parsed(buffer)
    assert rows(trace) == [(3, 0, 7, "a", 6)]
    assert parser.counts.other == 2


def test_cpus_are_merged_in_order_of_time() -> None:
    first, second = Buffer(), Buffer()
    for time in (10, 30, 50):
        first.event(time, bprint(1, A, time))
    for time in (20, 40):
        second.event(time, bprint(2, B, time))
    trace, _ = parsed(first, second)
    assert [(time, cpu) for time, cpu, *_ in rows(trace)] == [
        (10, 0), (20, 1), (30, 0), (40, 1), (50, 0),
    ]  # fmt: skip


def test_long_pauses_and_absolute_times_count() -> None:
    buffer = Buffer()
    buffer.event(5, bprint(1, A, 1))
    buffer.event(5 + (3 << 40), bprint(1, A, 2))
    buffer.absolute(9 << 40)
    buffer.event((9 << 40) + 7, bprint(1, A, 3))
    trace, _ = parsed(buffer)
    assert trace.time.tolist() == [5, 5 + (3 << 40), (9 << 40) + 7]


def test_an_absolute_time_keeps_the_high_bits_of_the_page() -> None:
    high = 3 << 59
    buffer = Buffer()
    buffer.page(high)
    buffer.absolute(100)
    buffer.raw(7, 5, bprint(1, A, 1))
    trace, _ = parsed(buffer)
    assert trace.time.tolist() == [high + 105]


def test_a_discarded_event_is_skipped_and_its_time_counts() -> None:
    buffer = Buffer()
    buffer.event(100, bprint(1, A, 1))
    buffer.discarded(150, 24)
    buffer.event(160, bprint(1, A, 2))
    trace, _ = parsed(buffer)
    assert trace.time.tolist() == [100, 160]


def test_padding_ends_a_page() -> None:
    buffer = Buffer()
    buffer.event(100, bprint(1, A, 1))
    buffer.pad()
    buffer.pages[-1] += bprint(1, B, 9)
    buffer.page(200)
    buffer.event(210, bprint(1, B, 2))
    trace, parser = parsed(buffer)
    assert [counter for *_, counter in rows(trace)] == [1, 2]
    assert parser.counts.damaged == 0


def test_a_long_event_has_its_length_in_a_word_of_its_own() -> None:
    buffer = Buffer()
    buffer.event(1, printed(3, "x" * 300 + " kgym:fs/a.c:a 4"))
    buffer.event(2, other(3, size=200))
    buffer.event(3, bprint(3, B, 5))
    trace, _ = parsed(buffer)
    assert [(name, counter) for *_, name, counter in rows(trace)] == [("a", 4), ("b", 5)]


def test_what_was_read_before_is_skipped() -> None:
    buffer = Buffer()
    for n in range(3):
        buffer.event(10 + n, bprint(1, A, n))
    parser = RingParser()
    parser.feed(0, buffer.array(), skip=2 * 32)
    assert parser.trace(lookup).counter.tolist() == [2]


def test_a_page_after_lost_events_is_counted() -> None:
    buffer = Buffer()
    buffer.event(1, bprint(1, A, 1))
    parser = RingParser()
    parser.feed(0, buffer.array(missed=True))
    assert len(parser.trace(lookup)) == 1
    assert parser.counts.missed == 1


@pytest.mark.parametrize("size", [8192, 16384, 65536])
def test_sub_buffers_may_be_larger_than_a_page(size: int) -> None:
    buffer = Buffer(size)
    for n in range(size // 16):
        buffer.event(n, bprint(1, A, n))
    trace, _ = parsed(buffer, layout=replace(Layout(), size=size))
    assert trace.counter.tolist() == list(range(size // 16))


def test_places_come_from_the_layout() -> None:
    layout = Layout(bprint=9, pid=12, bprint_format=24, bprint_arguments=32, data=24)
    entry = struct.pack("<HHIIiQQI", 9, 0, 0, 0, 77, 0, A, 5)
    page = struct.pack("<QQQI", 1000, 4 + len(entry), 0, len(entry) // 4 | 3 << 5) + entry
    parser = RingParser(layout)
    parser.feed(2, np.frombuffer(page.ljust(4096, b"\0"), np.uint8).reshape(1, 4096))
    assert rows(parser.trace(lookup)) == [(1003, 2, 77, "a", 5)]


def test_an_event_that_reaches_beyond_the_end_ends_its_page_only() -> None:
    buffer = Buffer()
    buffer.event(1, bprint(1, A, 1))
    buffer.raw(0, 0, struct.pack("<I", 0xFFFFFFFC))
    buffer.page(50)
    buffer.event(60, bprint(1, A, 2))
    trace, parser = parsed(buffer)
    assert trace.counter.tolist() == [1, 2]
    assert parser.counts.damaged == 1


@pytest.mark.parametrize("length", [0, 1, 3])
def test_an_event_without_length_cannot_stop_the_walk(length: int) -> None:
    buffer = Buffer()
    buffer.page(0)
    buffer.raw(0, 0, struct.pack("<I", length) + bytes(64))
    _, parser = parsed(buffer)
    assert parser.counts.damaged == (1 if length == 0 else 0) or len(parser.trace(lookup)) == 0


def test_no_pages_and_empty_pages_are_no_records() -> None:
    parser = RingParser()
    parser.feed(0, np.zeros((0, 4096), np.uint8))
    parser.feed(0, np.zeros((3, 4096), np.uint8))
    assert len(parser.trace(lookup)) == 0


@pytest.mark.thorough
@given(st.binary(max_size=3000), st.integers(0, 1 << 64 - 1))
def test_any_bytes_are_read_without_error(data: bytes, commit: int) -> None:
    page = struct.pack("<QQ", 5, commit) + data
    parser = RingParser()
    parser.feed(0, np.frombuffer(page.ljust(8192, b"\x07")[:8192], np.uint8).reshape(2, 4096))
    trace = parser.trace(lambda _: Function(None, "f"))
    assert (trace.time[1:] >= trace.time[:-1]).all()


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 34), st.sampled_from([A, B]), st.integers(0, 3)), max_size=400
    )
)
def test_what_was_written_is_read(steps: list[tuple[int, int, int]]) -> None:
    buffer, time, wanted = Buffer(), 0, []
    for number, (pause, address, kind) in enumerate(steps):
        time += pause
        if kind == 0:
            buffer.event(time, other(1, size=4 * (number % 40)))
        elif kind == 1:
            buffer.event(time, fn(1, address))
            wanted.append((time, 0, 1, NAMES[address].name, 0))
        else:
            buffer.event(time, bprint(kind, address, number))
            wanted.append((time, 0, kind, NAMES[address].name, number))
    assert rows(parsed(buffer)[0]) == wanted
