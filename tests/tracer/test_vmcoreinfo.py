"""VMCOREINFO of a dump that has no such note is found in the guest's memory."""

import struct

import pytest

from kgym_tracer.vmcoreinfo import missing

OTHER = struct.pack("<III", 5, 4, 1) + b"CORE\0\0\0\0" + b"cpu!"
TEXT = b"OSRELEASE=6.1.0\nPAGESIZE=4096\n"
NOTE = struct.pack("<III", 11, len(TEXT), 0) + b"VMCOREINFO\0\0" + TEXT


def dump(notes: bytes, memory: bytes) -> bytes:
    header = struct.pack(
        "<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    program = struct.pack("<2I6Q", 4, 0, 120, 0, 0, len(notes), len(notes), 0)
    return header + program + notes + memory


def test_the_text_is_found_in_memory() -> None:
    forged = b"VMCOREINFO\0\0OSRELEASE=false"
    assert missing(dump(OTHER, forged + bytes(77) + NOTE + bytes(100))) == TEXT


def test_a_dump_with_the_note_misses_nothing() -> None:
    assert missing(dump(OTHER + NOTE, NOTE)) is None


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"KDUMP   " + bytes(1000), dump(OTHER, b"")])
def test_where_it_is_nowhere_nothing_is_found(data: bytes) -> None:
    assert missing(data) is None


def test_a_note_that_reaches_beyond_the_end_is_none() -> None:
    assert missing(dump(OTHER, NOTE[:-1])) is None
