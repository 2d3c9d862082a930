"""A dump with its kernel's debug information, opened with drgn."""

import mmap
from pathlib import Path

import drgn

from kgym.errors import UserError
from kgym_tracer import vmcoreinfo

EXAMPLE = "dump-guest-memory of a QEMU with -device vmcoreinfo, or makedumpfile"


def open_dump(dump: Path, vmlinux: Path) -> drgn.Program:
    """Open an ELF or kdump-compressed dump.

    Raises UserError `bad_dump` where it is none, has no VMCOREINFO, or was
    flattened and not put together; `bad_vmlinux` where that lacks debug
    information or belongs to another kernel.
    """
    try:
        with dump.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            if data[:12] == b"makedumpfile":
                raise UserError("bad_dump", f"{dump.name} is flattened: makedumpfile -R joins it")
            program = drgn.Program(vmcoreinfo=vmcoreinfo.missing(data))
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
