"""From a reproducer's C source to a static program, compiled where it can do no harm."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kgym.api.steps import Diagnostic
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import SandboxLimits
from kgym.source import diagnostics

# Bytes of a program: it lies in the memory of each guest, and in each bundle.
LARGEST = 64 << 20
_SECONDS = 120.0
_MEMORY = 1 << 30
_DISK = 4 * LARGEST
_SHOWN = 50
# No warnings: generated sources are full of what a compiler warns of.
_FLAGS = ("-static", "-pthread", "-O1", "-w", "-s")


async def compile_reproducer(source: Path, folder: Path) -> Path:
    """Compile the C file into the new `folder`; return the program.

    Raises UserError `reproducer_does_not_compile`, with the compiler's
    messages as the detail `diagnostics`, and `reproducer_too_large`.
    """
    program = prepare(folder) / "reproducer"
    usual = SandboxLimits.of_host()
    limits = replace(usual, memory=min(_MEMORY, usual.memory), disk=_DISK)
    box = Sandbox(writable={"/out": folder}, readonly={"/in": source.parent}, limits=limits)
    argv = ["gcc", *_FLAGS, "-o", "/out/reproducer", source.name, "-lrt", "-lm"]
    try:
        done = await box.run(argv, timeout=_SECONDS, cwd="/in", check=False)
    except proc.ProgramTimedOut as error:
        raise _refusal(f"the compiler did not end within {_SECONDS:g} s") from error
    except UserError as error:
        if error.details.get("limit") in {"memory", "disk"}:
            raise _too_large(f"its compiler was {error.message}") from error
        raise
    if done.returncode == 0 and program.is_file() and not program.is_symlink():
        if (size := program.stat().st_size) > LARGEST:
            raise _too_large(f"its program has {size} bytes")
        return program
    found = [one for one in diagnostics.parse(done.text.splitlines()) if one.severity == "error"]
    if not found and not _is_the_compilers(done.text):
        said = done.text.strip()[-500:]
        raise InfrastructureError("compiler_failed", f"gcc ended with {done.returncode}: {said}")
    first = f"{found[0].file}:{found[0].line}: {found[0].message}" if found else done.text[-500:]
    raise _refusal(first, found[:_SHOWN])


def _is_the_compilers(text: str) -> bool:
    """Tell whether the compiler spoke, not what was to start it (the sandbox, for one)."""
    return "gcc: " in text or "ld: " in text or "compilation terminated" in text


def _too_large(why: str) -> UserError:
    return UserError(
        "reproducer_too_large",
        f"the reproducer is too large: {why}; a program may have {LARGEST >> 20} MiB. Arrays that"
        " are initialised are part of it; memory that is mapped when it runs is not",
    )


def _refusal(why: str, found: Sequence[Diagnostic] = ()) -> UserError:
    return UserError(
        "reproducer_does_not_compile",
        f"the reproducer does not compile: {why}",
        diagnostics=[one.model_dump() for one in found],
    )
