"""A guest's memory with nothing in it but a trace buffer, in any state that one may be in.

Types and places are our own: what reads it must go by the debug information.
"""

import struct
from collections.abc import Sequence

import drgn
from drgn import Object, Program, ProgramFlags, Type, TypeEnumerator, TypeMember

from tests.trace.buffer import Buffer, printed

BASE = 0xFFFF888000000000
PAGE = 4096
HEAD, UPDATE = 1, 2
NOWHERE = 0xDEAD0000

_READ, _DATA = 24, 40  # of a struct buffer_page
_POINTERS = {"reader_page": 16, "head_page": 24, "commit_page": 32, "tail_page": 40}
_COUNTS = {"overrun": 48, "commit_overrun": 56, "dropped_events": 64, "committing": 72}
_CPU_SIZE, _BUFFER_PAGE_SIZE = 80, 48


class FakeCpu:
    """The part of one CPU: a reader page and a ring of others, which all are pointed to by number.

    Number 0 is the reader page. What is not said stands on it: nothing was read yet.
    """

    def __init__(self, dump: "FakeDump", pages: int) -> None:
        self.dump = dump
        self.pages = [dump.room(_BUFFER_PAGE_SIZE) for _ in range(pages + 1)]
        self.data = [dump.room(dump.size) for _ in self.pages]
        for number, (page, data) in enumerate(zip(self.pages, self.data, strict=True)):
            dump.write(page + _DATA, data)
            self.link(number, 1 if number in {0, pages} else number + 1)
        self.address = dump.room(_CPU_SIZE)
        dump.write(self.address, pages)
        self.point(reader=0, head=1, commit=0, tail=0)

    def point(self, **to: int) -> None:
        for name, number in to.items():
            self.dump.write(self.address + _POINTERS[f"{name}_page"], self.pages[number])

    def link(self, number: int, to: int, flag: int = 0) -> None:
        self.dump.write(self.pages[number], self.pages[to] | flag)

    def head(self, number: int, flag: int = HEAD) -> None:
        """Make it the true head: the pointers to it, the reader page's among them, are flagged."""
        before = len(self.pages) - 1 if number == 1 else number - 1
        self.link(before, number, flag)
        self.link(0, number, flag)

    def count(self, **counts: int) -> None:
        for name, value in counts.items():
            self.dump.write(self.address + _COUNTS[name], value)

    def read_before(self, size: int) -> None:
        self.dump.write(self.pages[0] + _READ, size)

    def fill(self, number: int, *counters: int) -> None:
        """Put a record of PID 1 for each counter, which is also its time, on a page."""
        buffer = Buffer(self.dump.size)
        for counter in counters:
            buffer.event(counter, printed(1, f"kgym:fs/a.c:f {counter}"))
        self.dump.put(self.data[number], buffer.array().tobytes()[: self.dump.size])


class FakeDump:
    """Memory, with a drgn program on it; `order` is that of sub-buffers, None before 6.8."""

    def __init__(self, order: int | None = None) -> None:
        self.order = order
        self.size = PAGE << (order or 0)
        self.memory = bytearray()
        self.cpus: list[int] = []

    def room(self, size: int) -> int:
        address = BASE + len(self.memory)
        self.memory += bytes(-(-size // 8) * 8)
        return address

    def put(self, address: int, data: bytes) -> None:
        self.memory[address - BASE : address - BASE + len(data)] = data

    def write(self, address: int, value: int) -> None:
        self.put(address, struct.pack("<Q", value))

    def cpu(self, pages: int = 4) -> FakeCpu:
        cpu = FakeCpu(self, pages)
        self.cpus.append(cpu.address)
        return cpu

    def program(self) -> Program:
        """Return it as it is now."""
        flags = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
        program = Program(drgn.Platform(drgn.Architecture.X86_64, flags))
        pointers = self.room(8 * len(self.cpus))
        self.put(pointers, struct.pack(f"<{len(self.cpus)}Q", *self.cpus))
        buffer = self.room(24)
        self.put(buffer, struct.pack("<QQi", pointers, 0, self.order or 0))
        array = self.room(8)
        self.write(array, buffer)
        mask = self.room(8)
        self.write(mask, (1 << len(self.cpus)) - 1)
        whole = bytes(self.memory)

        def read(address: int, count: int, offset: int, _: bool) -> bytes:
            return whole[offset : offset + count]

        program.add_memory_segment(BASE, len(whole), read)
        types = _types(program, with_order=self.order is not None)
        objects = {
            "global_trace": Object(program, types["trace_array"], address=array),
            "__cpu_possible_mask": Object(program, types["cpumask"], address=mask),
            "nr_cpu_ids": Object(program, "unsigned long", len(self.cpus)),
            "PAGE_SIZE": Object(program, "unsigned long", PAGE),
        }

        def find_type(_: Program, kinds: object, name: str, filename: str | None) -> Type | None:
            return types.get(name)

        def find_object(
            _: Program, name: str, kinds: object, filename: str | None
        ) -> Object | None:
            return objects.get(name)

        program.register_type_finder("fake", find_type, enable_index=0)
        program.register_object_finder("fake", find_object, enable_index=0)
        assert not program.flags & ProgramFlags.IS_LIVE
        return program


def _types(program: Program, *, with_order: bool) -> dict[str, Type]:
    types: dict[str, Type] = {}

    def add(name: str, size: int, members: Sequence[tuple[str, Type, int]]) -> None:
        fields = [TypeMember(kind, member, 8 * offset) for member, kind, offset in members]
        types[name] = program.struct_type(name, size, fields)

    def pointer(name: str) -> Type:
        return program.pointer_type(types[name])

    u16 = program.int_type("unsigned short", 2, False)
    number = program.int_type("int", 4, True)
    whole = program.int_type("unsigned long", 8, False)
    signed = program.int_type("long", 8, True)
    char = program.int_type("char", 1, True)
    text = program.array_type(char)
    void = program.pointer_type(program.void_type())
    types["unsigned long"] = whole
    add("list_head", 16, [("next", void, 0), ("prev", void, 8)])
    add("atomic", 8, [("counter", signed, 0)])
    add("local", 8, [("a", types["atomic"], 0)])
    page = [("list", types["list_head"], 0), ("read", number, _READ), ("page", void, _DATA)]
    add("buffer_page", _BUFFER_PAGE_SIZE, page)
    add("buffer_data_page", 16, [("commit", whole, 8), ("data", text, 16)])
    fields = [("nr_pages", whole, 0)]
    fields += [(name, pointer("buffer_page"), at) for name, at in _POINTERS.items()]
    fields += [(name, types["local"], at) for name, at in _COUNTS.items()]
    add("ring_buffer_per_cpu", _CPU_SIZE, fields)
    cpus = program.pointer_type(pointer("ring_buffer_per_cpu"))
    order = [("subbuf_order", number, 16)] if with_order else []
    add("trace_buffer", 24, [("buffers", cpus, 0), ("clock", void, 8), *order])
    add("array_buffer", 8, [("buffer", pointer("trace_buffer"), 0)])
    add("trace_array", 8, [("array_buffer", types["array_buffer"], 0)])
    add("cpumask", 8, [("bits", program.array_type(whole, 1), 0)])
    add("trace_entry", 8, [("type", u16, 0), ("pid", number, 4)])
    add("ftrace_entry", 24, [("ip", whole, 8)])
    add("print_entry", 16, [("ip", whole, 8), ("buf", text, 16)])
    add("bprint_entry", 24, [("fmt", void, 16), ("buf", text, 24)])
    kinds = {"TRACE_FN": 1, "TRACE_PRINT": 5, "TRACE_BPRINT": 6}
    types["trace_type"] = program.enum_type(
        "trace_type", number, [TypeEnumerator(name, value) for name, value in kinds.items()]
    )
    return types
