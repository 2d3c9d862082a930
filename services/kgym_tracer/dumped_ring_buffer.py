"""The trace ring buffer of a dump, read into a trace.

Sources: kernel/trace/ring_buffer.c (struct ring_buffer_per_cpu, rb_set_head_page, the flags in list
pointers), kernel/trace/trace.c (global_trace, printk_trace). All offsets and numbers come from the
debug information.

A guest can forge its memory, even the number of pages, or an endless list on each of 8192 CPUs.
Each step along a list therefore counts as one sub-buffer, readable or not, and all steps together
are limited. Unreadable parts are skipped and noted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from drgn import FaultError, Object, Program, offsetof, sizeof
from drgn.helpers.linux.cpumask import for_each_possible_cpu

from kgym.errors import UserError
from kgym.trace import record_format
from kgym.trace.records import Function, Trace
from kgym.trace.ring_buffer import MISSED_EVENTS, MISSED_STORED, Key, KeyKind, Layout, RingParser
from kgym_tracer.tasks import task_names

# The largest NR_CPUS of x86 (arch/x86/Kconfig).
CPUS = 8192
# Bytes of all sub-buffers that lists lead to, over all CPUs. Each list is followed twice.
MOST_BYTES = 8 << 30
# Bytes of sub-buffers in memory at a time.
BATCH = 8 << 20
# Bytes of a format string.
FORMAT = 512
# Largest size of a sub-buffer: 2^10 pages.
LARGEST_ORDER = 10

# RB_PAGE_HEAD and RB_PAGE_UPDATE: flags in a pointer to the current or former head page.
_FLAGS = 3


def read_trace(program: Program) -> Trace:
    """Return the records of the buffers that trace_printk and the tracers write to.

    Raises UserError `no_trace` if the kernel has no such buffer.
    """
    reader = _Reader(program)
    for buffer in _buffers(program):
        reader.read(buffer)
    trace = reader.trace()
    pids = np.unique(trace.pid).tolist()
    return replace(
        trace,
        tasks=task_names(program, pids),
        lost=min(reader.lost, (1 << 63) - 1),  # a damaged counter must not cost the trace
        notes=tuple(reader.notes),
    )


def _buffers(program: Program) -> Iterator[Object]:
    """Yield the buffer of the first trace array, and that of trace_printk if it differs."""
    try:
        main = program["global_trace"]
    except KeyError as error:
        raise UserError("no_trace", "the kernel was built without CONFIG_TRACING") from error
    yield main.array_buffer.buffer
    try:
        other = program["printk_trace"]  # since 6.13, selected by the option trace_printk_dest
    except KeyError:
        return
    if other and other != main.address_of_():
        yield other.array_buffer.buffer


@dataclass
class _Reader:
    """Reader for the buffers of one dump, with one parser for each sub-buffer layout."""

    program: Program
    lost: int = 0
    notes: list[str] = field(default_factory=list)
    budget: int = MOST_BYTES
    parsers: dict[Layout, RingParser] = field(default_factory=dict)
    base: str = ""

    def read(self, buffer: Object) -> None:
        if not buffer:
            raise UserError("no_trace", "the trace buffer was never allocated")
        layout = _layout(self.program, buffer)
        parser = self.parsers.setdefault(layout, RingParser(layout))
        self.notes.append(f"clock: {self._symbol(buffer.clock.value_())}")
        for cpu in islice(for_each_possible_cpu(self.program), CPUS):
            try:
                per_cpu = buffer.buffers[cpu]
                if per_cpu:
                    ring = _Cpu(per_cpu, layout, self.budget // layout.size)
                    try:
                        self._read_cpu(cpu, ring, parser)
                    finally:
                        self.budget -= ring.steps * layout.size
            except FaultError as error:
                self.notes.append(f"CPU {cpu}: its buffer cannot be followed: {error}")

    def trace(self) -> Trace:
        try:
            self.base = self.program.source_location("start_kernel")[-1].filename
        except (LookupError, ValueError):
            self.notes.append("no line information: functions by address have no file")
        self.base = self.base.removesuffix("init/main.c")
        traces = [parser.trace(self._function) for parser in self.parsers.values()]
        for parser in self.parsers.values():
            if parser.counts.damaged:
                self.notes.append(f"{parser.counts.damaged} sub-buffers hold a damaged event")
        # Records of different layouts are not merged; all but one of the buffers are usually empty.
        return max(traces, key=len)

    def _read_cpu(self, cpu: int, ring: "_Cpu", parser: RingParser) -> None:
        self.lost += ring.lost
        size, pages, unread = ring.layout.size, [], 0
        skip = 0
        for address, read in ring.sub_buffers():
            try:
                pages.append(self.program.read(address, size))
            except FaultError:
                unread += 1
                continue
            skip = skip or read
            if len(pages) * size >= BATCH:
                skip = self._feed(parser, cpu, pages, skip)
        self._feed(parser, cpu, pages, skip)
        if unread:
            self.notes.append(f"CPU {cpu}: {unread} sub-buffers are not in the dump")
        if not ring.whole:
            self.notes.append(f"CPU {cpu}: its list of sub-buffers does not lead to the last one")
        if ring.uncommitted:
            self.notes.append(f"CPU {cpu}: a record was being written, with what interrupted it")

    def _feed(self, parser: RingParser, cpu: int, pages: list[bytes], skip: int) -> int:
        if pages:
            whole = np.frombuffer(b"".join(pages), np.uint8)
            parser.feed(cpu, whole.reshape(len(pages), -1), skip)
            pages.clear()
        return 0

    def _function(self, key: Key) -> Function | None:
        if key.kind is KeyKind.TEXT:
            return record_format.function(str(key.value))
        address = int(key.value)
        if key.kind is KeyKind.FORMAT:
            try:
                text = self.program.read_c_string(address, max_size=FORMAT)
            except FaultError:
                return None
            return record_format.function(text.decode(errors="replace"))
        name = self._symbol(address)
        return None if name is None else Function(self._file(address), name)

    def _symbol(self, address: int) -> str | None:
        try:
            return str(self.program.symbol(address).name)
        except LookupError:
            return None

    def _file(self, address: int) -> str | None:
        try:
            path = self.program.source_location(address)[-1].filename
        except (LookupError, ValueError):
            return None
        return path.removeprefix(self.base).removeprefix("./") or None


class _Cpu:
    """One CPU's part of a buffer: its unread sub-buffers, in order."""

    def __init__(self, per_cpu: Object, layout: Layout, most: int) -> None:
        self.program = per_cpu.prog_
        self.layout = layout
        self.whole = True
        self.steps = 0
        page = self.program.type("struct buffer_page")
        self._list = offsetof(page, "list")
        self._next = offsetof(page, "list.next")
        self._read = offsetof(page, "read")
        self._page = offsetof(page, "page")
        self.count = min(int(per_cpu.nr_pages), most // 2)
        self.reader, self.head, self.commit, tail = (
            int(per_cpu.member_(name).value_())
            for name in ("reader_page", "head_page", "commit_page", "tail_page")
        )
        self.lost = sum(
            max(0, int(per_cpu.member_(name).a.counter))
            for name in ("overrun", "commit_overrun", "dropped_events")
        )
        self.uncommitted = int(per_cpu.committing.a.counter) != 0 or self.commit != tail

    def sub_buffers(self) -> Iterator[tuple[int, int]]:
        """Yield each sub-buffer's address, and how many of its bytes were already consumed."""
        # The reader page is swapped out of the ring, so its records come first.
        read = self.program.read_u32(self.reader + self._read)
        page = self._page_of(self.reader)
        if self._committed(page) > read:
            yield page, read
        if self.reader == self.commit:  # the writer is still on it
            return
        at = self._true_head()
        for _ in range(self.count + 1):
            yield self._page_of(at), 0
            if at == self.commit:
                return
            at = self._follow(at)[0]
        self.whole = False

    def _true_head(self) -> int:
        """Return the page at which the reader would continue."""
        # The writer moves the flag in the list pointer; `head_page` is only updated by readers.
        at = self.head
        for _ in range(self.count + 1):
            at, flagged = self._follow(at)
            if flagged:
                return at
        self.whole = False
        return self.head

    def _follow(self, at: int) -> tuple[int, bool]:
        self.steps += 1
        pointer = int(self.program.read_u64(at + self._next))
        return (pointer & ~_FLAGS) - self._list, bool(pointer & _FLAGS)

    def _page_of(self, at: int) -> int:
        return int(self.program.read_u64(at + self._page))

    def _committed(self, page: int) -> int:
        commit = int(self.program.read_u32(page + self.layout.commit))
        return commit & ~(MISSED_EVENTS | MISSED_STORED)


def _layout(program: Program, buffer: Object) -> Layout:
    page = program.type("struct buffer_data_page")
    kinds = {kind.name: kind.value for kind in program.type("enum trace_type").enumerators or ()}
    entries = {
        name: program.type(f"struct {name}")
        for name in ("trace_entry", "ftrace_entry", "print_entry", "bprint_entry")
    }
    order = 0
    if any(
        member.name == "subbuf_order" for member in buffer.type_.type.members or ()
    ):  # since 6.8
        order = max(0, min(int(buffer.subbuf_order), LARGEST_ORDER))
    if offsetof(entries["trace_entry"], "type") or sizeof(program.type("unsigned long")) != 8:
        raise UserError("no_trace", "trace buffers of this architecture are not supported")
    return Layout(
        size=int(program["PAGE_SIZE"]) << order,
        commit=offsetof(page, "commit"),
        data=offsetof(page, "data"),
        function=kinds["TRACE_FN"],
        print=kinds["TRACE_PRINT"],
        bprint=kinds["TRACE_BPRINT"],
        pid=offsetof(entries["trace_entry"], "pid"),
        function_ip=offsetof(entries["ftrace_entry"], "ip"),
        print_text=offsetof(entries["print_entry"], "buf"),
        bprint_format=offsetof(entries["bprint_entry"], "fmt"),
        bprint_arguments=offsetof(entries["bprint_entry"], "buf"),
    )
