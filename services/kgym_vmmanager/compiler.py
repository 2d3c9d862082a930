"""From a reproducer's C source to a static program, compiled where it can do no harm."""

from collections.abc import Sequence
from pathlib import Path

from kgym import diagnostics, proc
from kgym.errors import InfrastructureError, UserError
from kgym.sandbox import Sandbox, prepare
from kgym.steps import Diagnostic

_SECONDS = 120.0
_SHOWN = 50
# No warnings: generated sources are full of what a compiler warns of.
_FLAGS = ("-static", "-pthread", "-O1", "-w", "-s")


async def compile_reproducer(source: Path, folder: Path) -> Path:
    """Compile the C file into the new `folder`; return the program.

    Raises UserError `reproducer_does_not_compile`, with the compiler's
    messages as the detail `diagnostics`.
    """
    program = prepare(folder) / "reproducer"
    box = Sandbox(writable={"/out": folder}, readonly={"/in": source.parent})
    argv = ["gcc", *_FLAGS, "-o", "/out/reproducer", source.name, "-lrt", "-lm"]
    try:
        done = await box.run(argv, timeout=_SECONDS, cwd="/in", check=False)
    except proc.ProgramTimedOut as error:
        raise _refusal(f"the compiler did not end within {_SECONDS:g} s") from error
    if done.returncode == 0 and program.is_file() and not program.is_symlink():
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


def _refusal(why: str, found: Sequence[Diagnostic] = ()) -> UserError:
    return UserError(
        "reproducer_does_not_compile",
        f"the reproducer does not compile: {why}",
        diagnostics=[one.model_dump() for one in found],
    )
