"""Parser of tracers' text: `trace` of tracefs, and the output of `trace-cmd report`.

    comm-PID [CPU] flags seconds.fraction: message

Sources: kernel/trace/trace_output.c (trace_print_context, lat_fmt), the formats of
trace-cmd-report(1). A message is `function <-parent`, or ends in the instrumentation's
`kgym:<file>:<function> <counter>`.

Nearly all lines have this form. They are parsed in parallel: step k looks at one character of each
line. Lines that do not fit are parsed one by one, with regular expressions.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgym.trace import record_format
from kgym.trace.interner import Interner
from kgym.trace.records import Array, Function, Trace
from kgym.trace.ring_buffer import in_order

# Bytes parsed at a time: the intermediate arrays stay in the CPU's cache.
CHUNK = 1 << 20
# Bytes of a line that are read.
LINE = 512

# Characters of a task's name, padded, as printed by both tools.
_NAME = 16
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SPACE, _DASH, _DOT, _COLON, _OPEN, _CLOSE = (ord(char) for char in " -.:[]")

_LINE = re.compile(
    rb"\s*(?P<task>.{0,64})-(?P<pid>\d{1,10})\s+(?:\([\s\d-]{1,12}\)\s+)?\[(?P<cpu>\d{1,5})\]\s+"
    rb"(?:[^\s\d]\S{2,9}\s+)?(?P<seconds>\d{1,20})(?:\.(?P<fraction>\d{1,9}))?:\s+(?P<text>\S.*)"
)
_LOST = re.compile(rb"(?:\[LOST (\d+) EVENTS\]|\[(\d+) EVENTS DROPPED\])")
_WRITTEN = re.compile(rb"# entries-in-buffer/entries-written: (\d+)/(\d+)")


@dataclass
class TextParser:
    """Parser fed with text in pieces of any size; `trace` returns all records by time."""

    other: int = 0
    """Lines that are not a record of a function."""
    lost: int = 0
    tasks: dict[int, str] = field(default_factory=dict)
    _rest: bytes = b""
    _columns: list[dict[str, Array]] = field(default_factory=list)
    _interner: Interner = field(default_factory=Interner)
    _functions: dict[Function, int] = field(default_factory=dict)
    _by_key: list[int] = field(default_factory=list)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the text."""
        data = self._rest + piece
        end = data.rfind(b"\n") + 1
        self._rest = data[end:][: LINE + 1]  # enough to see that a line is too long
        for start, stop in _chunks(data, end):
            self._read(data[start:stop])

    def trace(self) -> Trace:
        """Return the records; the parsed columns are freed, to save memory."""
        if self._rest:
            self._read(self._rest + b"\n")
            self._rest = b""
        columns: dict[str, Any] = {}
        for name, dtype in Trace.COLUMNS:
            parts = [part.pop(name) for part in self._columns]
            columns[name] = np.concatenate(parts) if parts else np.empty(0, dtype)
        self._columns.clear()
        columns = in_order(columns)
        return Trace(**columns, functions=tuple(self._functions), tasks=self.tasks, lost=self.lost)

    def _read(self, data: bytes) -> None:
        lines = _Lines(data)
        fits = lines.parse()
        key = np.where(fits, self._numbers(lines, fits), np.int32(-1))
        columns: dict[str, Array] = {
            "time": lines.time,
            "cpu": lines.cpu,
            "pid": lines.pid,
            "function": key,
            "counter": lines.counter,
        }
        for n in np.flatnonzero(~fits):
            self._read_line(lines, int(n), columns)
        mine = key >= 0
        self.other += len(mine) - int(mine.sum())
        columns = {
            name: columns[name][mine].astype(dtype, copy=False) for name, dtype in Trace.COLUMNS
        }
        self._columns.append(columns)
        self._name_tasks(lines, columns["pid"], np.flatnonzero(mine))

    def _numbers(self, lines: "_Lines", fits: Array) -> NDArray[np.int32]:
        """Return each line's function; lines beyond the interner's limit no longer fit."""
        numbers = self._interner.numbers(lines.keys())
        new, first = np.unique(numbers[fits], return_index=True)
        where = np.flatnonzero(fits)[first]
        for number, n in zip(new.tolist(), where.tolist(), strict=True):
            if number >= len(self._by_key):
                missing = number + 1 - len(self._by_key)
                self._by_key.extend([-1] * missing)
                self._by_key[number] = self._function(lines.key_text(n))
        # Lines beyond the interner's limit are parsed one by one instead.
        fits &= numbers >= 0
        if not self._by_key:
            return np.full(len(numbers), -1, np.int32)
        return np.array(self._by_key, np.int32)[np.clip(numbers, 0, len(self._by_key) - 1)]

    def _function(self, text: str) -> int:
        named = record_format.function(text)
        return -1 if named is None else self._functions.setdefault(named, len(self._functions))

    def _read_line(self, lines: "_Lines", n: int, columns: dict[str, Array]) -> None:
        line = lines.line(n)
        if match := _LOST.search(line):
            self.lost += int(match[1] or match[2])
        elif match := _WRITTEN.match(line):
            self.lost += max(0, int(match[2]) - int(match[1]))
        match = _LINE.match(line)
        if match is None:
            return
        text = match["text"].decode(errors="replace")
        number = self._function(text)
        if number < 0:
            return
        message = record_format.message(text)
        columns["function"][n] = number
        columns["counter"][n] = message.counter if message else 0
        columns["pid"][n] = int(match["pid"]) & 0x7FFFFFFF
        columns["cpu"][n] = int(match["cpu"]) & 0x7FFF
        columns["time"][n] = _time(match["seconds"], match["fraction"])
        self.tasks.setdefault(int(match["pid"]), match["task"].decode(errors="replace").strip())

    def _name_tasks(self, lines: "_Lines", pids: Array, where: Array) -> None:
        seen, first = np.unique(pids, return_index=True)
        for pid, n in zip(seen.tolist(), first.tolist(), strict=True):
            if pid not in self.tasks:
                name = lines.line(int(where[n]))[:_NAME]
                self.tasks[pid] = name.decode(errors="replace").strip()


class _Lines:
    """The lines of a chunk, which ends with a newline, and their parsed fields."""

    def __init__(self, data: bytes) -> None:
        # Padding after the end, so that looking ahead needs no bounds checks.
        self.buffer = np.frombuffer(data + bytes(LINE + 16), np.uint8)
        self.ends = np.flatnonzero(self.buffer[: len(data)] == 10)
        self.starts = np.concatenate(([0], self.ends[:-1] + 1))
        count = len(self.ends)
        self.at = self.starts
        self.fits = np.ones(count, bool)
        self.time = np.zeros(count, np.uint64)
        self.cpu = np.zeros(count, np.int16)
        self.pid = np.zeros(count, np.int32)
        self.counter = np.zeros(count, np.uint32)
        self.key_start = self.key_end = self.starts

    def line(self, n: int) -> bytes:
        return self.buffer[self.starts[n] : min(self.ends[n], self.starts[n] + LINE)].tobytes()

    def key_text(self, n: int) -> str:
        raw = self.buffer[self.key_start[n] : self.key_end[n]].tobytes()
        return raw.decode(errors="replace")

    def parse(self) -> Array:
        """Parse all lines; return which of them have the usual form."""
        self.fits &= self.ends - self.starts > _NAME + 16
        self.fits &= self.ends - self.starts <= LINE
        self.at = np.where(self.fits, self.starts + _NAME, self.starts)
        self._expect(_DASH)
        pid, _ = self._number(10)
        self._skip_spaces()
        self._expect(_OPEN)
        cpu, _ = self._number(4)
        self._expect(_CLOSE)
        self._skip_spaces()
        self._skip_flags()
        seconds, _ = self._number(10)
        self._expect(_DOT)
        fraction, digits = self._number(9)
        self._expect(_COLON)
        self._skip_spaces()
        self.fits &= self.at < self.ends
        scale = 10 ** (9 - np.minimum(digits, 9))
        self.time = (seconds * 1_000_000_000 + fraction * scale).astype(np.uint64)
        self.pid, self.cpu = pid.astype(np.int32), cpu.astype(np.int16)
        self.key_start = self.at
        self._read_counter()
        return self.fits

    def keys(self) -> NDArray[np.uint64]:
        """Return a hash of each line's message without its counter."""
        lengths = np.where(self.fits, self.key_end - self.key_start, 0)
        words = np.ndarray(len(self.buffer) - 7, "<u8", self.buffer.data, strides=(1,))
        result = lengths.astype(np.uint64) * _MULTIPLIER
        for start in range(0, int(lengths.max(initial=0)), 8):
            rest = lengths - start
            more = rest > 0
            word = words[np.where(more, self.key_start + start, 0)]
            word &= _MASKS[np.clip(rest, 0, 8)]
            mixed = (result ^ word) * _MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
            result = np.where(more, mixed, result)
        return result

    def _expect(self, char: int) -> None:
        self.fits &= self.buffer[self.at] == char
        self.at = self.at + 1

    def _number(self, most: int) -> tuple[Array, Array]:
        """Read up to `most` digits, at least one; return the values and the numbers of digits."""
        value = np.zeros(len(self.at), np.int64)
        start = self.at
        at = start
        for _ in range(most):
            digit = self.buffer[at] - np.uint8(48)  # characters below "0" wrap around
            more = digit < 10
            if not more.any():
                break
            value = np.where(more, value * 10 + digit, value)
            at = at + more
            if not more.all():
                at, value = self._number_rest(at, value, more, most)
                break
        digits = at - start
        self.fits &= digits > 0
        self.at = at
        return value, digits

    def _number_rest(self, at: Array, value: Array, more: Array, most: int) -> tuple[Array, Array]:
        """Continue with the lines whose number has not ended."""
        at, value = at.copy(), value.copy()
        live = np.flatnonzero(more)
        for _ in range(most):
            digit = self.buffer[at[live]] - np.uint8(48)
            more = digit < 10
            live, digit = live[more], digit[more]
            if not len(live):
                break
            value[live] = value[live] * 10 + digit
            at[live] += 1
        return at, value

    def _skip_spaces(self) -> None:
        self._skip(lambda chars: chars == _SPACE, 32)

    def _skip_flags(self) -> None:
        """Skip a word that does not begin with a digit, and the spaces after it."""
        start = self.at
        digit = (self.buffer[start] - np.uint8(48)) < 10
        self._skip(lambda chars: chars > _SPACE, 12)
        self._skip_spaces()
        self.at = np.where(digit, start, self.at)

    def _skip(self, wanted: Callable[[Array], Array], most: int) -> None:
        at = self.at.copy()
        more = wanted(self.buffer[at])
        while most and more.all():
            at += 1
            most -= 1
            more = wanted(self.buffer[at])
        live = np.flatnonzero(more)
        for _ in range(most):
            if not len(live):
                break
            at[live] += 1
            live = live[wanted(self.buffer[at[live]])]
        self.at = at

    def _read_counter(self) -> None:
        """Read the digits at the line's end, if a space precedes them."""
        at = self.ends - 1
        value = np.zeros(len(at), np.int64)
        live = np.flatnonzero(self.fits)
        at = np.where(self.buffer[at] == 13, at - 1, at)
        last = at.copy()
        for place in range(10):
            digit = self.buffer[at[live]] - np.uint8(48)
            more = digit < 10
            live, digit = live[more], digit[more]
            if not len(live):
                break
            value[live] += digit.astype(np.int64) * 10**place
            at[live] -= 1
        counted = (at < last) & (self.buffer[at] == _SPACE) & (at > self.key_start)
        self.key_end = np.where(counted, at, last + 1)
        self.counter = np.where(counted, value, 0).astype(np.uint32)


_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def _chunks(data: bytes, end: int) -> Iterable[tuple[int, int]]:
    """Yield ranges of whole lines, about CHUNK bytes each."""
    start = 0
    while start < end:
        stop = data.rfind(b"\n", start, min(end, start + CHUNK)) + 1
        if stop == 0:  # a line longer than a chunk
            stop = data.find(b"\n", start) + 1
        yield start, stop
        start = stop


def _time(seconds: bytes, fraction: bytes | None) -> int:
    whole = int(seconds)
    if fraction is None:  # a clock that does not count seconds, such as `counter`
        return whole & (1 << 64) - 1
    return (whole * 10**9 + int(fraction.ljust(9, b"0"))) & (1 << 64) - 1
