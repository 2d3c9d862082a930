"""From reproducers to the initrds of guests: the shared image with the program appended.

Linux unpacks concatenated archives over each other (buffer-format.rst, see `guest/cpio.py`). So all
programs share one cached image, and none has to be copied into a running guest.
"""

import asyncio
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kgym.api import syz_program
from kgym.api.capabilities import NO_SYZKALLER
from kgym.api.steps import DEFAULT_SYZKALLER, GUEST_PROGRAMS, Reproducer, SyzkallerArtifact
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.reproducer_compiler import compile_reproducer
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import LimitExceeded, SandboxLimits
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.guest.paths import PROGRAM, PROGRAM_TEXT

_GUEST_FOLDER = "/kgym"
# Random names, as the runner gives to programs: a patch could refuse a program whose name it knows.
_SCRIPT = f"""#!/bin/sh
name=$(mktemp -u XXXXXXXX)
ln {_GUEST_FOLDER}/syz-execprog "p$name" 2>/dev/null || ln -s {_GUEST_FOLDER}/syz-execprog "p$name"
ln {_GUEST_FOLDER}/syz-executor "e$name" 2>/dev/null || ln -s {_GUEST_FOLDER}/syz-executor "e$name"
"""
_HELP_SECONDS = 60.0
_HELP_MEMORY = 2 << 30
_HELP_OUTPUT = 1 << 20


def source_name(reproducer: Reproducer, number: int) -> str:
    """Return the file name of a step's reproducer: `reproducer.c`, `reproducer-1.syz`, …"""
    return f"reproducer{f'-{number}' if number else ''}.{reproducer.kind}"


async def program(
    reproducer: Reproducer, source: Path, folder: Path, syzkaller: Mapping[str, Path]
) -> dict[str, Path]:
    """Make a reproducer's files in the new `folder`; return them by their paths in the guest.

    `syzkaller` are the folders with its binaries by commit (`kgym.host.detection.syzkallers`).
    Raises UserError for a program that does not compile, and `no_syzkaller`.
    """
    if reproducer.kind == "c":
        return {PROGRAM: await compile_reproducer(source, folder)}
    name = reproducer.syzkaller or DEFAULT_SYZKALLER
    binaries = syzkaller.get(name)
    if binaries is None:
        which = f" of commit {name}" if name != DEFAULT_SYZKALLER else ""
        message = f"a `syz` reproducer needs syzkaller's binaries{which}, which are not here"
        raise UserError("no_syzkaller", f"{message}; {NO_SYZKALLER}")
    known = await _flags(binaries / SyzkallerArtifact.EXECPROG, folder)
    text, script = prepare(folder) / Path(PROGRAM_TEXT).name, folder / "reproducer"
    wanted = syz_program.options(reproducer.text)
    text.write_text(syz_program.program(reproducer.text, wanted, known))
    once = shlex.join(syz_program.first_run(wanted, known))
    first = f"{once} {PROGRAM_TEXT}"
    rest = shlex.join([*syz_program.arguments(wanted, known), PROGRAM_TEXT])
    # The first run prints the calls that it executes: syz-execprog leaves out lines that it cannot
    # read and still ends with status 0, which would look like "no crash". A program that is
    # repeated for ever does not print them again: that would flood the output.
    run = '"./p$name" "-executor=./e$name"'
    last = f"{run} {first} || exit\nexec {run} {rest}" if wanted.repeat else f"exec {run} {first}"
    # Arguments name files with variants, which run instead.
    others = f'[ $# = 0 ] || exec {run} {once} "$@"'
    # In the format in which syz-execprog reports features that the kernel lacks.
    lacking = (
        f"{name:<24}: this syzkaller does not know it"
        for name in syz_program.unknown(wanted, known)
    )
    notes = "".join(f"echo {shlex.quote(line)} >&2\n" for line in lacking)
    script.write_text(f"{_SCRIPT}{others}\n{notes}{last}\n")
    files = {PROGRAM: script, PROGRAM_TEXT: text}
    return files | {f"{_GUEST_FOLDER}/{name}": binaries / name for name in GUEST_PROGRAMS}


async def initrd(
    image: GuestImage, files: Mapping[str, Path], path: Path, modules: Path | None = None
) -> Path:
    """Write the image followed by `modules` and by `files`, executables by path in the guest.

    `modules` is an archive of the kernel's modules.
    """
    await asyncio.to_thread(_write, image, files, path, modules)
    return path


def _write(image: GuestImage, files: Mapping[str, Path], path: Path, modules: Path | None) -> None:
    with path.open("wb") as sink:
        for archive in filter(None, (image.initrd, modules)):
            with archive.open("rb") as source:
                shutil.copyfileobj(source, sink)
        cpio.write({name.lstrip("/"): file for name, file in files.items()}, 0o755, sink)


async def _flags(execprog: Path, folder: Path) -> frozenset[str]:
    """Return the flags that this syz-execprog knows. Raises UserError `bad_syzkaller`."""
    # Flags have come and gone over the years, so the program is asked for them, whatever its age.
    # It runs in the sandbox, since anybody may have built it.
    place = prepare(folder / "help")
    copy = place / execprog.name  # the sandbox's user may not be able to reach its folder
    await asyncio.to_thread(shutil.copyfile, execprog, copy)
    copy.chmod(0o755)
    usual = SandboxLimits.of_host()
    limits = replace(usual, memory=min(_HELP_MEMORY, usual.memory), output=_HELP_OUTPUT)
    argv = [f"/syzkaller/{SyzkallerArtifact.EXECPROG}", "-help"]
    box = Sandbox(readonly={"/syzkaller": place}, limits=limits)
    try:
        done = await box.run(argv, timeout=_HELP_SECONDS, check=False)
        help_text = done.text
    except LimitExceeded as error:
        raise UserError("bad_syzkaller", f"syz-execprog -help: {error.message}") from error
    except proc.ProgramTimedOut as error:  # the host may be busy
        raise InfrastructureError(
            "bad_syzkaller", f"syz-execprog -help: {error.message}"
        ) from error
    finally:
        copy.unlink()
    known = syz_program.flags(help_text)
    if "executor" not in known:
        words = " ".join(help_text.split())[-300:]
        message = f"the syz-execprog lists no flag -executor for -help; it prints: {words}"
        raise UserError("bad_syzkaller", message)
    return known
