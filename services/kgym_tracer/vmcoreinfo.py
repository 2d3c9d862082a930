"""The VMCOREINFO note, which tools need to make sense of a memory dump. Pure.

The kernel keeps the note in its own memory (kernel/crash_core.c, later
kernel/vmcore_info.c), and hands it to QEMU through fw_cfg, which it finds by
ACPI only: a guest that booted with `acpi=off` leaves a dump without it. Then it
is looked for in the dumped memory. Source of the format: elf(5).
"""

import mmap
import struct

# Bytes of a note: the kernel's is one page at most.
LARGEST = 1 << 16

_NAME = b"VMCOREINFO\0\0"  # padded to 4 bytes
_START = _NAME + b"OSRELEASE="
_NOTE_HEADER = struct.Struct("<III")
_ELF = struct.Struct("<16s2HI3QI3H")
_PROGRAM = struct.Struct("<2I6Q")
_PT_NOTE = 4


def missing(data: bytes | mmap.mmap) -> bytes | None:
    """Return the text that a dump has in its memory, but not as a note.

    None where it has the note, or the text is nowhere; also for what is no ELF
    dump of a 64-bit little-endian machine.
    """
    try:
        if _NAME.rstrip(b"\0") in _notes(data):
            return None
        return _find(data)
    except (ValueError, struct.error):
        return None


def _notes(data: bytes | mmap.mmap) -> bytes:
    fields = _ELF.unpack_from(data, 0)
    if fields[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no ELF file of a 64-bit little-endian machine")
    start, size, count = fields[5], fields[9], fields[10]
    for at in range(start, start + size * count, max(size, 1)):
        kind, _, offset, _, _, length, _, _ = _PROGRAM.unpack_from(data, at)
        if kind == _PT_NOTE:
            return data[offset : offset + length]
    return b""


def _find(data: bytes | mmap.mmap) -> bytes | None:
    at = data.find(_START)
    while at >= 0:
        start, text = at - _NOTE_HEADER.size, at + len(_NAME)
        if start >= 0:
            name, length, _ = _NOTE_HEADER.unpack_from(data, start)
            if name == len(_NAME) - 1 and length <= LARGEST and text + length <= len(data):
                return data[text : text + length]
        at = data.find(_START, at + 1)
    return None
