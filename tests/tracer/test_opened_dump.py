"""The VMCOREINFO text is taken from the guest's memory if a dump has no such note."""

import struct

import pytest

from kgym_tracer.opened_dump import missing_vmcoreinfo

OTHER = struct.pack("<III", 5, 4, 1) + b"CORE\0\0\0\0" + b"cpu!"
TEXT = b"OSRELEASE=6.1.0\nPAGESIZE=4096\n"
NOTE = struct.pack("<III", 11, len(TEXT), 0) + b"VMCOREINFO\0\0" + TEXT
FORGED = b"VMCOREINFO\0\0OSRELEASE=false"


def dump(notes: bytes, memory: bytes) -> bytes:
    header = struct.pack(
        "<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    program = struct.pack("<2I6Q", 4, 0, 120, 0, 0, len(notes), len(notes), 0)
    return header + program + notes + memory


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(dump(OTHER, FORGED + bytes(77) + NOTE + bytes(100)), TEXT, id="in-memory"),
        pytest.param(dump(OTHER + NOTE, NOTE), None, id="not-missing"),
        pytest.param(dump(OTHER, b""), None, id="nowhere"),
        pytest.param(dump(OTHER, NOTE[:-1]), None, id="cut-off"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b"\x7fELF", None, id="short"),
        pytest.param(b"KDUMP   " + bytes(1000), None, id="kdump"),
    ],
)
def test_missing_vmcoreinfo(data: bytes, text: bytes | None) -> None:
    assert missing_vmcoreinfo(data) == text
