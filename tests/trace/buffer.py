"""A ring buffer as the kernel writes it: pages of events, for tests that read them."""

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kgym.trace.ring_buffer import MISSED_EVENTS

LOW = (1 << 27) - 1
FN, PRINT, BPRINT = 1, 5, 6


def bprint(pid: int, fmt: int, *arguments: int, ip: int = 0) -> bytes:
    head = struct.pack("<HBBiQQ", BPRINT, 0, 0, pid, ip, fmt)
    return head + struct.pack(f"<{len(arguments)}I", *arguments)


def fn(pid: int, ip: int, parent: int = 0) -> bytes:
    return struct.pack("<HBBiQQ", FN, 0, 0, pid, ip, parent)


def printed(pid: int, text: str, ip: int = 0) -> bytes:
    return struct.pack("<HBBiQ", PRINT, 0, 0, pid, ip) + text.encode() + b"\0"


def other(pid: int, kind: int = 300, size: int = 16) -> bytes:
    return struct.pack("<HBBi", kind, 0, 0, pid) + bytes(size)


@dataclass
class Buffer:
    """Sub-buffers of one CPU. `event` opens a new one where the last is full."""

    size: int = 4096
    pages: list[bytearray] = field(default_factory=list)
    stamp: int = 0

    def page(self, time: int) -> None:
        self.pages.append(bytearray(struct.pack("<QQ", time, 0)))
        self.stamp = time

    def event(self, time: int, entry: bytes) -> None:
        entry += bytes(-len(entry) % 4)
        need = 8 + 8 + len(entry)
        if not self.pages or len(self.pages[-1]) + need > self.size:
            self.page(time)
        delta = time - self.stamp
        if delta > LOW:
            self.raw(30, delta & LOW, struct.pack("<I", delta >> 27))
            delta = 0
        if len(entry) <= 28 * 4:
            self.raw(len(entry) // 4, delta, entry)
        else:
            self.raw(0, delta, struct.pack("<I", len(entry) + 4) + entry)
        self.stamp = time

    def absolute(self, time: int) -> None:
        time &= (1 << 59) - 1
        self.raw(31, time & LOW, struct.pack("<I", time >> 27))
        self.stamp = time

    def discarded(self, time: int, size: int) -> None:
        """An event that a filter took back: it keeps its time, which is 1 where it was 0."""
        self.raw(29, (time - self.stamp) or 1, struct.pack("<I", size + 4) + bytes(size))
        self.stamp = time

    def raw(self, kind: int, delta: int, rest: bytes = b"") -> None:
        self.pages[-1] += struct.pack("<I", kind | delta << 5) + rest

    def pad(self) -> None:
        """Mark the rest of the last page as empty, as the writer does that goes on behind it."""
        self.raw(29, 0)

    def array(self, missed: bool = False) -> NDArray[np.uint8]:
        rows = []
        for page in self.pages:
            struct.pack_into("<Q", page, 8, len(page) - 16 | (MISSED_EVENTS if missed else 0))
            rows.append(bytes(page).ljust(self.size, b"\xaa"))
        return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), self.size)
