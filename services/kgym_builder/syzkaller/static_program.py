"""Whether a program can run in a guest, which has no libraries: from its ELF headers alone."""

import os
import struct
from typing import IO

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHH")
_X86_64, _SEGMENT = 62, 56
_PT_INTERP = (3).to_bytes(4, "little")


def is_static(file: IO[bytes]) -> bool:
    """Tell whether it is a whole ELF file for x86_64 that asks for no loader.

    A program of a stranger's build may say anything of itself: what lies outside of the file is not
    looked for.
    """
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return False
    magic, bits, order, _, machine, _, _, table, _, _, _, size, count = _HEADER.unpack(head)
    if (magic, bits, order, machine, size) != (b"\x7fELF", 2, 1, _X86_64, _SEGMENT):
        return False
    if not count or table + count * _SEGMENT > file.seek(0, os.SEEK_END):
        return False
    file.seek(table)
    segments = (file.read(_SEGMENT) for _ in range(count))
    return all(not segment.startswith(_PT_INTERP) for segment in segments)
