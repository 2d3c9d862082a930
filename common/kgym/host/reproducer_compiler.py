"""Compile a reproducer's C source to a static program, in a sandbox."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kgym.api.steps import Diagnostic
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import SandboxLimits
from kgym.source import diagnostics

# Maximum bytes of a program: each guest holds it in memory, and each bundle contains it.
LARGEST = 64 << 20
_SECONDS = 120.0
_MEMORY = 1 << 30
_DISK = 4 * LARGEST
_SHOWN = 50
# No warnings: syzkaller's generated sources cause many.
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
    parsed = diagnostics.parse(done.text.splitlines())
    errors = [diagnostic for diagnostic in parsed if diagnostic.severity == "error"]
    # Without a message of gcc or ld, it may be the sandbox that failed: not the user's fault.
    if not errors and not _names_the_compiler(done.text):
        output = done.text.strip()[-500:]
        raise InfrastructureError("compiler_failed", f"gcc ended with {done.returncode}: {output}")
    first = errors[0] if errors else None
    message = f"{first.file}:{first.line}: {first.message}" if first else done.text[-500:]
    raise _refusal(message, errors[:_SHOWN])


def _names_the_compiler(text: str) -> bool:
    return "gcc: " in text or "ld: " in text or "compilation terminated" in text


def _too_large(why: str) -> UserError:
    return UserError(
        "reproducer_too_large",
        f"the reproducer is too large: {why}; the limit is {LARGEST >> 20} MiB. Initialised arrays"
        " are part of the program; memory that it maps at run time is not",
    )


def _refusal(why: str, errors: Sequence[Diagnostic] = ()) -> UserError:
    return UserError(
        "reproducer_does_not_compile",
        f"the reproducer does not compile: {why}",
        diagnostics=[error.model_dump() for error in errors],
    )
