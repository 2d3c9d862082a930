"""A dump with its kernel's debug information, opened with drgn.

Tools need the VMCOREINFO note to interpret a dump. The kernel keeps it in its own memory
(kernel/crash_core.c, later kernel/vmcore_info.c) and passes it to QEMU through fw_cfg, which it
finds by ACPI only. A guest booted with `acpi=off` therefore leaves a dump without the note, and the
dumped memory is searched for it. Source of the format: elf(5).
"""

import mmap
import struct
from pathlib import Path

import drgn

from kgym.errors import UserError

EXAMPLE = "dump-guest-memory of a QEMU with -device vmcoreinfo, or makedumpfile"
# Bytes of a note: the kernel's has one page at most.
LARGEST = 1 << 16

_NAME = b"VMCOREINFO\0\0"  # padded to 4 bytes
_START = _NAME + b"OSRELEASE="
_NOTE_HEADER = struct.Struct("<III")
_ELF = struct.Struct("<16s2HI3QI3H")
_PROGRAM = struct.Struct("<2I6Q")
_PT_NOTE = 4


def open_dump(dump: Path, vmlinux: Path) -> drgn.Program:
    """Open an ELF or kdump-compressed dump.

    Raises UserError `bad_dump` for other files, dumps without VMCOREINFO and flattened dumps, and
    `bad_vmlinux` if it lacks debug information or belongs to another kernel.
    """
    try:
        with dump.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            if data[:12] == b"makedumpfile":
                raise UserError("bad_dump", f"{dump.name} is flattened: makedumpfile -R joins it")
            program = drgn.Program(vmcoreinfo=missing_vmcoreinfo(data))
        program.set_core_dump(dump)
    except (ValueError, OSError, drgn.FaultError) as error:
        raise UserError("bad_dump", f"{dump.name} cannot be opened: {error}") from error
    if not program.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise UserError(
            "bad_dump", f"{dump.name} is no dump of a kernel with VMCOREINFO (it takes {EXAMPLE})"
        )
    try:
        program.load_debug_info([vmlinux])
    except (ValueError, OSError, drgn.MissingDebugInfoError) as error:
        raise UserError("bad_vmlinux", f"{vmlinux.name} does not fit the dump: {error}") from error
    if program.main_module().wants_debug_file():  # drgn passes over files of another build ID
        raise UserError(
            "bad_vmlinux",
            f"{vmlinux.name} does not fit the dump: it is of another build, or has no DWARF",
        )
    return program


def missing_vmcoreinfo(data: bytes | mmap.mmap) -> bytes | None:
    """Return the note's text from a dump's memory if the dump lacks the note itself.

    Returns None if the dump has the note, if its memory lacks the text, and for files other than
    ELF dumps of 64-bit little-endian machines.
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
