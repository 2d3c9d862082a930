"""`trace.dat` of trace-cmd, version 6 (trace-cmd.dat.v6(5)) → records.

The file says by itself where things stand: it carries the kernel's own
descriptions of pages and entries, its symbols and its format strings.
"""

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass
from mmap import mmap

import numpy as np

from kgym.errors import UserError
from kgym.trace import record_format
from kgym.trace.records import Function, Trace
from kgym.trace.ring_buffer import Key, KeyKind, Layout, RingParser

MAGIC = b"\x17\x08\x44tracing"
CPUS = 8192

_FIELD = re.compile(rb"field:[^;]*?(\w+)(?:\[\d*\])?;\s*offset:(\d+);")
_NAME = re.compile(rb"^name: (\w+)\nID: (\d+)\n", re.MULTILINE)
_FORMAT = re.compile(rb'^0x([0-9a-f]{1,16}) : "(.*)"$', re.MULTILINE)
_SYMBOL = re.compile(rb"^([0-9a-f]{1,16}) [tTwW] ([\w.$]+)", re.MULTILINE)
_TASK = re.compile(r"^(\d{1,9}) (.+)$", re.MULTILINE)


def parse(data: bytes | mmap) -> Trace:
    """Read the whole file; raise UserError `bad_trace` where it is cut short or another version."""
    view = memoryview(data)
    try:
        return _Reader(view).trace()
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise UserError("bad_trace", f"the trace.dat is damaged or cut short: {error}") from error


@dataclass
class _Reader:
    """Goes through the header, then takes the CPUs' pages from where it says that they are."""

    view: memoryview
    at: int = 0

    def trace(self) -> Trace:
        self._start()
        page = self._block(b"header_page\0", "Q")
        self._block(b"header_event\0", "Q")
        formats = [self._block(b"", "Q") for _ in range(self._number("I"))]
        for _ in range(self._number("I")):
            self._word()
            for _ in range(self._number("I")):
                self._block(b"", "Q")
        symbols = _Symbols(self._block(b"", "I"), self._block(b"", "I"))
        tasks = self._block(b"", "Q").decode(errors="replace")
        layout = _layout(page, formats, self.page_size)
        parser = RingParser(layout)
        for cpu, (offset, size) in enumerate(self._cpus()):
            count = size // layout.size
            pages = np.frombuffer(self.view, np.uint8, count * layout.size, offset)
            parser.feed(cpu, pages.reshape(count, layout.size))
        trace = parser.trace(symbols.function)
        columns = {name: getattr(trace, name) for name, _ in Trace.COLUMNS}
        names = {int(pid): name for pid, name in _TASK.findall(tasks)}
        note = f"events were lost at {parser.counts.missed} places"
        return Trace(
            **columns,
            functions=trace.functions,
            tasks=names,
            notes=(note,) if parser.counts.missed else (),
        )

    def _start(self) -> None:
        self._expect(MAGIC)
        version = self._word()
        if version != b"6":
            raise UserError(
                "bad_trace",
                f"trace.dat of version {version.decode(errors='replace')}; make it version 6:"
                " trace-cmd convert --file-version 6 -i trace.dat -o trace6.dat",
            )
        big_endian, long_size, self.page_size = *self._take("BB"), self._number("I")
        if big_endian or long_size != 8:
            raise UserError("bad_trace", "only traces of little-endian 64-bit kernels are read")

    def _cpus(self) -> list[tuple[int, int]]:
        cpus = self._number("I")
        if cpus > CPUS:
            raise ValueError(f"{cpus} CPUs")
        kind = self._bytes(10)
        while kind == b"options  \0":
            while self._number("H"):
                self._block(b"", "I")
            kind = self._bytes(10)
        if kind != b"flyrecord\0":
            raise UserError("bad_trace", "the trace.dat holds text (latency), not records")
        return [(self._number("Q"), self._number("Q")) for _ in range(cpus)]

    def _take(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{form}", self.view, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def _number(self, form: str) -> int:
        return self._take(form)[0]

    def _bytes(self, size: int) -> bytes:
        if size > len(self.view) - self.at:
            raise ValueError(f"{size} bytes from {self.at}")
        self.at += size
        return bytes(self.view[self.at - size : self.at])

    def _expect(self, text: bytes) -> None:
        if self._bytes(len(text)) != text:
            raise ValueError(f"no {text!r}")

    def _block(self, name: bytes, form: str) -> bytes:
        self._expect(name)
        return self._bytes(self._number(form))

    def _word(self) -> bytes:
        start = self.at
        while self.view[self.at] != 0:
            self.at += 1
        self.at += 1
        return bytes(self.view[start : self.at - 1])


class _Symbols:
    """The names of functions by address, and the format strings."""

    def __init__(self, kallsyms: bytes, formats: bytes) -> None:
        found = sorted((int(at, 16), name.decode()) for at, name in _SYMBOL.findall(kallsyms))
        self.addresses = [at for at, _ in found]
        self.names = [name for _, name in found]
        self.formats = {
            int(at, 16): text.decode(errors="replace").removesuffix("\\n")
            for at, text in _FORMAT.findall(formats)
        }

    def function(self, key: Key) -> Function | None:
        if key.kind is KeyKind.ADDRESS:
            n = bisect_right(self.addresses, int(key.value)) - 1
            return Function(None, self.names[n]) if n >= 0 else None
        text = self.formats.get(int(key.value), "") if key.kind is KeyKind.FORMAT else key.value
        return record_format.function(str(text))


def _layout(page: bytes, formats: list[bytes], size: int) -> Layout:
    places = {name: int(at) for name, at in _FIELD.findall(page)}
    entries = {}
    for text in formats:
        if match := _NAME.search(text):
            entries[match[1]] = int(match[2]), {n: int(at) for n, at in _FIELD.findall(text)}
    usual = Layout()
    function = entries.get(b"function", (usual.function, {}))
    bprint = entries.get(b"bprint", (usual.bprint, {}))
    printed = entries.get(b"print", (usual.print, {}))
    return Layout(
        size=max(size, 256),
        commit=places.get(b"commit", usual.commit),
        data=places.get(b"data", usual.data),
        function=function[0],
        print=printed[0],
        bprint=bprint[0],
        pid=bprint[1].get(b"common_pid", usual.pid),
        function_ip=function[1].get(b"ip", usual.function_ip),
        print_text=printed[1].get(b"buf", usual.print_text),
        bprint_format=bprint[1].get(b"fmt", usual.bprint_format),
        bprint_arguments=bprint[1].get(b"buf", usual.bprint_arguments),
    )
