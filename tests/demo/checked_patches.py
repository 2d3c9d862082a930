"""Patches that come to different outcomes, and what a check step would say of each."""

from pathlib import Path
from typing import Any

from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    CheckSpec,
    Diagnostic,
    Edit,
    FileCheck,
    FileOutcome,
    FunctionCheck,
    KernelConfig,
    Patch,
    PatchCheck,
    PatchOutcome,
    TarballSource,
)

FILE = "kernel/watch_queue.c"
DIFF, OUTPUT = (Path(__file__).with_name(f"broken.{kind}").read_text() for kind in ("diff", "txt"))


def diagnostic(file: str, line: int | None, severity: str, message: str) -> Diagnostic:
    """Return a compiler's message."""
    return Diagnostic.model_validate(
        {"file": file, "line": line, "column": 3, "severity": severity, "message": message}
    )


# On two lines of the diff, on one that it does not show, and in a file that it does not change.
SAID = [
    diagnostic(FILE, 362, "error", "expected ';' before 'tf'"),
    diagnostic(FILE, 361, "warning", "comparison is always false"),
    diagnostic(FILE, 512, "warning", "'late' defined but not used"),
    diagnostic("include/linux/watch_queue.h", 80, "error", "unknown type name 'wqueue_t'"),
]


def patches(hostile: str = "") -> list[Patch]:
    """Return a patch that does not compile, one of edits that does, one that does not apply."""
    return [
        Patch(name=f"return early{hostile}", diff=DIFF + (f"+{hostile}\n" if hostile else "")),
        Patch(
            name="edits",
            edits=[Edit(file=FILE, original="\tint a;\n", replacement="\tint a;\n\tint unused;\n")],
        ),
        Patch(name="elsewhere", diff=DIFF.replace("memdup_user", "memdup")),
    ]


def request(*asked: Patch, tags: tuple[str, ...] = ()) -> JobRequest:
    """Return a job that checks these patches; by default, `patches()`."""
    spec = CheckSpec(
        source=TarballSource(url="https://example.org/linux.tar.xz", sha256="0" * 64),
        config=KernelConfig(base="defconfig"),
        patches=list(asked) or patches(),
    )
    return JobRequest(steps=[spec], tags=list(tags))


def check(patch: Patch) -> PatchCheck | None:
    """Return what becomes of one of these patches; None for any other."""
    more: dict[str, Any] = {}
    outcome = PatchOutcome.COMPILES
    if patch.name.startswith("return early"):
        outcome = PatchOutcome.DOES_NOT_COMPILE
        evil = patch.name.removeprefix("return early")
        diagnostics = [*SAID, *([diagnostic(FILE, 361, "error", evil)] if evil else [])]
        more = {"reason": f"{FILE}:362: expected ';'{evil}", "diagnostics": diagnostics}
        more["output"] = OUTPUT + evil
    elif patch.name == "edits":
        more["diagnostics"] = [diagnostic(FILE, 771, "warning", "unused variable 'unused'")]
        more["output"] = f"{FILE}:771:6: warning: unused variable\n  771 |         int unused;\n"
        more["functions"] = [
            FunctionCheck(file=FILE, name="free", instructions_before=10, instructions_after=12)
        ]
    elif patch.name == "elsewhere":
        outcome = PatchOutcome.DOES_NOT_APPLY
        more["reason"] = "hunk 1 does not apply"
    else:
        return None
    made = outcome is PatchOutcome.COMPILES
    state = FileOutcome.COMPILES if made else FileOutcome.DOES_NOT_COMPILE
    files = [FileCheck(path=FILE, outcome=state, objects=1, dependents=1)]
    return PatchCheck(name=patch.name, outcome=outcome, files=files, seconds=0.4, **more)
