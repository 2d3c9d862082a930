"""From reproducers to what a guest boots: its image with the program in it.

Linux unpacks archives that follow each other one over the other, so a program
costs no way into the guest (see buffer-format.rst, as in `kgym_vmmanager.guest.cpio`).
"""

import asyncio
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from kgym.api import syz_program
from kgym.api.capabilities import NO_SYZKALLER
from kgym.api.steps import DEFAULT_SYZKALLER, Reproducer
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.detection import SYZKALLER_PROGRAMS, syzkallers
from kgym.host.reproducer_compiler import compile_reproducer
from kgym.host.sandbox import prepare
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.guest.paths import PROGRAM

_GUEST_FOLDER = "/kgym"
_HELP_SECONDS = 60.0


def source_name(reproducer: Reproducer, number: int) -> str:
    """Return the file name of a step's reproducer: `reproducer.c`, `reproducer-1.syz`, …"""
    return f"reproducer{f'-{number}' if number else ''}.{reproducer.kind}"


async def program(
    reproducer: Reproducer, source: Path, folder: Path, syzkaller: Path | None
) -> dict[str, Path]:
    """Make what the guest is to have, in the new `folder`; return it by name in the guest's folder.

    Raises UserError for what does not compile, and `no_syzkaller`.
    """
    if reproducer.kind == "c":
        return {PROGRAM: await compile_reproducer(source, folder)}
    name = reproducer.syzkaller or DEFAULT_SYZKALLER
    binaries = syzkallers(syzkaller).get(name)
    if binaries is None:
        which = f" of commit {name}" if name != DEFAULT_SYZKALLER else ""
        message = f"a `syz` reproducer needs syzkaller's binaries{which}, which are not here"
        raise UserError("no_syzkaller", f"{message}; {NO_SYZKALLER}")
    known = await _flags(binaries)
    wanted = syz_program.options(reproducer.text)
    text, script = prepare(folder) / "program.syz", folder / "reproducer"
    text.write_text(syz_program.program(reproducer.text, wanted, known))
    command = [
        f"{_GUEST_FOLDER}/syz-execprog",
        f"-executor={_GUEST_FOLDER}/syz-executor",
        *syz_program.arguments(wanted, known),
        f"{_GUEST_FOLDER}/{text.name}",
    ]
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    files = {PROGRAM: script, f"{_GUEST_FOLDER}/{text.name}": text}
    return files | {f"{_GUEST_FOLDER}/{name}": binaries / name for name in SYZKALLER_PROGRAMS}


async def initrd(image: GuestImage, files: Mapping[str, Path], path: Path) -> Path:
    """Write the image with the files in it, by their paths in the guest, as executables."""
    await asyncio.to_thread(_write, image, files, path)
    return path


def _write(image: GuestImage, files: Mapping[str, Path], path: Path) -> None:
    with path.open("wb") as sink:
        with image.initrd.open("rb") as source:
            shutil.copyfileobj(source, sink)
        cpio.write({name.lstrip("/"): file for name, file in files.items()}, 0o755, sink)


async def _flags(binaries: Path) -> frozenset[str]:
    """Return the flags that this syz-execprog knows. Whoever runs the worker vouches for it."""
    argv: list[str | Path] = [binaries / "syz-execprog", "-help"]
    try:
        done = await proc.run(argv, timeout=_HELP_SECONDS, check=False)
    except (proc.ProgramTimedOut, OSError) as error:
        raise InfrastructureError("bad_syzkaller", f"{argv[0]} -help: {error}") from error
    known = syz_program.flags(done.text)
    if "executor" not in known:
        said = " ".join(done.text.split())[-300:]
        message = f"{binaries}/syz-execprog lists no flag -executor for -help; it says: {said}"
        raise InfrastructureError("bad_syzkaller", message)
    return known
