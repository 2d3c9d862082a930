"""Parser of the sub-buffers of the kernel's trace ring buffer.

Sources: include/linux/ring_buffer.h (event header, event types), kernel/trace/ring_buffer.c
(struct buffer_data_page, rb_event_length, rb_fix_abs_ts), kernel/trace/trace_entries.h (entries),
Documentation/trace/ring-buffer-design.rst.

Events have different lengths, so an event's position is only known from the previous one. To use
NumPy all the same, all sub-buffers of a batch are walked in parallel: step k reads the k-th event
of each. Little-endian 64-bit kernels only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgym.trace.interner import Interner
from kgym.trace.record_format import message
from kgym.trace.records import Array, Function, Trace

# Bytes of sub-buffers that are walked in parallel.
BATCH = 8 << 20

MISSED_EVENTS = 1 << 31
MISSED_STORED = 1 << 30

_PADDING, _TIME_EXTEND, _TIME_STAMP = 29, 30, 31
_LOW = np.uint64(27)
# The bits that an absolute time stamp does not contain.
_HIGHEST = np.uint64(0xF8 << 56)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes from the start of the sub-buffer, or of the entry.

    `function`, `print` and `bprint` are the numbers of the entry types.
    """

    size: int = 4096
    commit: int = 8
    data: int = 16
    function: int = 1
    print: int = 5
    bprint: int = 6
    pid: int = 4
    function_ip: int = 8
    print_text: int = 16
    bprint_format: int = 16
    bprint_arguments: int = 24


class KeyKind(StrEnum):
    """The kind of value that identifies a record's function."""

    FORMAT = "format"
    """The address of a format string."""
    ADDRESS = "address"
    """An address in the function."""
    TEXT = "text"
    """The record's own text."""


class Key(NamedTuple):
    """The value that identifies a record's function."""

    kind: KeyKind
    value: int | str


# Returns the function of a key, called once per key; None if it is not a function's record.
Lookup = Callable[[Key], Function | None]


@dataclass
class Counts:
    """Counters over all sub-buffers."""

    pages: int = 0
    damaged: int = 0
    """Sub-buffers with an event that extends beyond the end; they are read up to there."""
    missed: int = 0
    """Sub-buffers before which the kernel reports lost events."""
    other: int = 0
    """Events that are not a record of a function."""


@dataclass
class RingParser:
    """Parser fed with sub-buffers, in order for each CPU; `trace` returns all records by time."""

    layout: Layout = Layout()
    counts: Counts = field(default_factory=Counts)
    _columns: list[dict[str, Array]] = field(default_factory=list)
    _addresses: dict[KeyKind, Interner] = field(
        default_factory=lambda: {KeyKind.FORMAT: Interner(), KeyKind.ADDRESS: Interner()}
    )
    _keys: dict[Key, int] = field(default_factory=dict)

    def feed(self, cpu: int, pages: NDArray[np.uint8], skip: int = 0) -> None:
        """Parse sub-buffers, one per row; skip `skip` bytes of the first one's data."""
        batch = max(1, BATCH // self.layout.size)
        for start in range(0, len(pages), batch):
            self._feed(cpu, pages[start : start + batch], 0 if start else skip)

    def trace(self, lookup: Lookup) -> Trace:
        """Return the records of functions; the parsed columns are freed, to save memory."""
        functions, numbers = _named(self._keys, lookup)
        columns: dict[str, Any] = {}
        kept = [numbers[part.pop("function")] for part in self._columns]
        for name, dtype in Trace.COLUMNS:
            parts = [
                (number if name == "function" else part.pop(name))[number >= 0]
                for number, part in zip(kept, self._columns, strict=True)
            ]
            whole = np.concatenate(parts) if parts else np.empty(0, dtype)
            columns[name] = whole.astype(dtype, copy=False)
            del parts, whole  # at most one column is in memory twice
        self.counts.other += sum(int((number < 0).sum()) for number in kept)
        self._columns.clear()
        del kept
        return Trace(**in_order(columns), functions=functions)

    def _feed(self, cpu: int, pages: NDArray[np.uint8], skip: int) -> None:
        words = np.ascontiguousarray(pages).reshape(-1).view("<u4")
        events = self._walk(words, len(pages), skip)
        kind = words[events.at] & np.uint32(0xFFFF)
        key = np.full(len(kind), -1, np.int32)
        counter = np.zeros(len(kind), np.uint32)
        self._read_bprints(words, events, kind, key, counter)
        self._read_functions(words, events, kind, key)
        self._read_prints(words, events, kind, key, counter)
        mine = key >= 0
        self.counts.other += len(mine) - int(mine.sum())
        pid = words[events.at + self.layout.pid // 4].view(np.int32)
        columns: dict[str, Array] = {
            "time": events.time,
            "pid": pid,
            "function": key,
            "counter": counter,
        }
        if not mine.all():
            columns = {name: column[mine] for name, column in columns.items()}
        columns["cpu"] = np.full(len(columns["time"]), cpu, np.int16)
        self._columns.append(columns)

    def _walk(self, words: NDArray[np.uint32], count: int, skip: int) -> "_Events":
        layout = self.layout
        width = layout.size // 4
        base = np.arange(count, dtype=np.int64) * width
        commit = words[base + layout.commit // 4].astype(np.int64)
        self.counts.pages += count
        self.counts.missed += int(((commit & MISSED_EVENTS) != 0).sum())
        commit &= ~(MISSED_EVENTS | MISSED_STORED)
        at = base + layout.data // 4
        stop = at + np.minimum(commit, layout.size - layout.data) // 4
        if count and skip:
            at[0] += skip // 4
        low, high = words[base].astype(np.uint64), words[base + 1].astype(np.uint64)
        walk = _Walk(words, at, stop, low | high << np.uint64(32))
        events = walk.events()
        self.counts.damaged += walk.damaged
        return events

    def _read_bprints(
        self, words: NDArray[np.uint32], events: "_Events", kind: Array, key: Array, counter: Array
    ) -> None:
        layout = self.layout
        argument = layout.bprint_arguments // 4
        mine = (kind == layout.bprint) & (events.length >= argument)
        if not mine.any():
            return
        at = events.at if mine.all() else events.at[mine]
        key[mine] = self._numbers(KeyKind.FORMAT, _u64(words, at + layout.bprint_format // 4))
        # A format without arguments has no counter; the word there belongs to the next event.
        places = np.minimum(at + argument, len(words) - 1)
        full = events.length[mine] > argument
        counter[mine] = np.where(full, words[places], np.uint32(0))

    def _read_functions(
        self, words: NDArray[np.uint32], events: "_Events", kind: Array, key: Array
    ) -> None:
        ip = self.layout.function_ip // 4
        mine = (kind == self.layout.function) & (events.length >= ip + 2)
        if mine.any():
            key[mine] = self._numbers(KeyKind.ADDRESS, _u64(words, events.at[mine] + ip))

    def _read_prints(
        self, words: NDArray[np.uint32], events: "_Events", kind: Array, key: Array, counter: Array
    ) -> None:
        """Read text entries one by one: they are rare, written by people and scripts."""
        start = self.layout.print_text // 4
        for n in np.flatnonzero((kind == self.layout.print) & (events.length > start)):
            at = int(events.at[n])
            raw = words[at + start : at + int(events.length[n])].tobytes()
            text = message(raw.split(b"\0", maxsplit=1)[0].decode(errors="replace"))
            if text is not None:
                key[n] = self._key(Key(KeyKind.TEXT, text.text))
                counter[n] = text.counter

    def _numbers(self, kind: KeyKind, values: NDArray[np.uint64]) -> NDArray[np.int32]:
        interner = self._addresses[kind]
        numbers = interner.numbers(values)
        mine = np.array([self._key(Key(kind, value)) for value in interner.keys], np.int32)
        return np.where(numbers < 0, np.int32(-1), mine[numbers])

    def _key(self, key: Key) -> int:
        return self._keys.setdefault(key, len(self._keys))


class _Events(NamedTuple):
    """Data events: the index of each entry's first word, its length in words, its time."""

    at: NDArray[np.int32]
    length: NDArray[np.int32]
    time: NDArray[np.uint64]


@dataclass
class _Walk:
    """Walk of several sub-buffers in parallel, from word `at` to word `stop` of each."""

    words: NDArray[np.uint32]
    at: NDArray[np.int64]
    stop: NDArray[np.int64]
    time: NDArray[np.uint64]
    damaged: int = 0

    def events(self) -> _Events:
        rows: list[tuple[Array, Array, Array]] = []
        while (alive := self.at < self.stop).any():
            head = self.words[np.where(alive, self.at, 0)]
            kind = head & np.uint32(31)
            delta = (head >> np.uint32(5)).astype(np.uint64)
            # The fast path: no event with a length of 0, no padding, no time stamps.
            if ((kind - np.uint32(1)) < 28)[alive].all():
                size = kind.astype(np.int64) + 1
                entry, event = self.at + 1, alive
                self.time = self.time + delta
            else:
                size, entry, event = self._special(alive, kind, delta)
            # A damaged length would lead into the next sub-buffer: stop at the last whole event.
            beyond = alive & (self.at + size > self.stop)
            if beyond.any():
                self.damaged += int(beyond.sum())
                self.stop = np.where(beyond, self.at, self.stop)
                event = event & ~beyond
            self.at = np.where(alive, self.at + size, self.at)
            place = np.where(event, entry, -1).astype(np.int32)
            rows.append((place, (self.at - entry).astype(np.int32), self.time))
        return _by_page(rows)

    def _special(self, alive: Array, kind: Array, delta: Array) -> tuple[Array, Array, Array]:
        """Return size in words, index of the entry, and whether it is data, for any events."""
        following = self.words[np.where(alive & (self.at + 1 < self.stop), self.at + 1, 0)]
        wide = following.astype(np.uint64)
        padding, extend, stamp = (kind == k for k in (_PADDING, _TIME_EXTEND, _TIME_STAMP))
        rest = padding & (delta == 0)
        counted = (kind == 0) | (padding & ~rest)
        size = kind.astype(np.int64) + 1
        size = np.where(counted, 1 + (following.astype(np.int64) + 3) // 4, size)
        size = np.where(extend | stamp, 2, size)
        size = np.where(rest, self.stop - self.at, size)
        # The count includes its own word.
        size = np.where(counted & (size < 2), np.iinfo(np.int32).max, size)
        # A discarded event keeps its delta, which is 1 where it had none (rb_event_discard).
        counts = ~stamp & ~(padding & (delta == 1))
        step = np.where(counts, delta, np.uint64(0))
        step = np.where(extend, delta + (wide << _LOW), step)
        absolute = (wide << _LOW) | delta | (self.time & _HIGHEST)
        time = np.where(stamp, absolute, self.time + step)
        self.time = np.where(alive, time, self.time)
        event = alive & (kind <= 28)
        return size, self.at + 1 + (kind == 0), event


def in_order(columns: dict[str, Any]) -> dict[str, Any]:
    """Sort columns by time, one by one; records of the same time keep their order."""
    time = columns["time"]
    if (time[1:] < time[:-1]).any():
        order = np.argsort(time, kind="stable")
        del time
        for name in columns:
            columns[name] = columns[name][order]
    return columns


def _by_page(rows: list[tuple[Array, Array, Array]]) -> _Events:
    """Transpose steps of all sub-buffers into sub-buffers with all their steps."""
    if not rows:
        empty = np.empty(0, np.int32)
        return _Events(empty, empty, np.empty(0, np.uint64))
    at, length, time = (np.stack(column, axis=1) for column in zip(*rows, strict=True))
    there = at >= 0
    return _Events(at[there], length[there], time[there])


def _u64(words: NDArray[np.uint32], at: Array) -> NDArray[np.uint64]:
    whole: NDArray[np.uint64] = words[at + 1].astype(np.uint64) << np.uint64(32)
    return whole | words[at]


def _named(keys: dict[Key, int], lookup: Lookup) -> tuple[tuple[Function, ...], Array]:
    """Return the distinct functions, and each key's index into them; -1 for none."""
    functions: dict[Function, int] = {}
    numbers = np.full(len(keys), -1, np.int32)
    for key, number in keys.items():
        function = lookup(key)
        if function is not None:
            numbers[number] = functions.setdefault(function, len(functions))
    return tuple(functions), numbers
