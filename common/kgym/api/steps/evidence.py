"""Diagnostics, findings, and the evidence for a `no_crash`."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Number, Strict

_Check = (
    Literal["amputation", "checkpatch", "smoke", "detector", "scope", "work", "variants", "tests"]
    | Literal["sparse", "clang-format"]
)


class Severity(StrEnum):
    """Effect of a finding on a trial of a fix."""

    NOTE = "note"
    """A hint for people; the bug may still count as resolved."""
    BLOCKING = "blocking"
    """The trial does not count as resolved unless the user accepts the finding."""


class Finding(Strict):
    """An observation about a patch or its kernel; never the only basis of a verdict."""

    check: _Check = Field(
        description="amputation: code that the patch disables; checkpatch: style; smoke: features"
        " that no longer work; detector: whether the kernel can still report a bug; scope: files"
        " that the patch touches; work: whether the reproducer still does the same; variants:"
        " programs close to the reproducer that crash or are answered differently; tests: the"
        " kernel's own that fail; sparse: new warnings; clang-format: style of files that follow it"
    )
    severity: Severity = Severity.NOTE
    reason: Name = Field(description="a short stable word, e.g. `check_removed`")
    message: Line
    file: Name | None = None
    line: Count | None = Field(None, description="in the file after the patch, else before it")
    function: Name | None = None


class Diagnostic(Strict):
    """One message of the compiler, assembler or linker."""

    file: Name
    line: Count | None = None
    column: Count | None = None
    severity: Literal["error", "warning"]
    message: Line


class ControlName(StrEnum):
    """A fault that is raised on purpose, to test whether the kernel still reports it."""

    WARNING = "warning"
    PANIC = "panic"
    OOPS = "oops"
    KASAN_OUT_OF_BOUNDS = "kasan_out_of_bounds"
    KASAN_USE_AFTER_FREE = "kasan_use_after_free"
    UBSAN = "ubsan"
    LOCKDEP = "lockdep"
    HUNG_TASK = "hung_task"
    LEAK = "leak"


class ControlOutcome(StrEnum):
    """The outcome of a fault that was raised on purpose."""

    REPORTED = "reported"
    """The kernel reported it by its title: the detector works."""
    SILENT = "silent"
    """The kernel did not report it, and would not have reported the bug either."""
    NOT_CONFIGURED = "not_configured"
    """The kernel was built without this detector."""
    NOT_AVAILABLE = "not_available"
    """The code that raises it does not compile, or does not load, on the unpatched kernel."""
    NOT_TRIED = "not_tried"
    """The instance was lost before the fault was raised."""


class Control(Strict):
    """One fault raised on purpose (a positive control)."""

    name: ControlName
    outcome: ControlOutcome
    title: Line | None = Field(None, description="title of the report that came")
    detail: Line = ""


class Call(Strict):
    """System calls of the program with the same result."""

    name: Name = Field(description="of the system call, e.g. `ioctl`")
    result: Name = Field(
        description="`ok`, or the error's name, e.g. `EINVAL`; `pending`: it had not returned at"
        " the end, `stuck`: and ignored signals, `died`: the process ended in it"
    )
    count: int = Field(ge=1, lt=1 << 63)


class RunEnd(Strict):
    """Runs of the program with the same end."""

    how: Name = Field(
        description="`exit`, `signal`, or `killed`: by the platform, at the time limit"
    )
    value: int = Field(ge=-(1 << 31), lt=1 << 32, description="exit status or signal")
    count: int = Field(ge=1, lt=1 << 63)


class Reached(Strict):
    """A function of the crash's stack, and whether the kernel executed it."""

    function: Name
    reached: bool


class Work(Strict):
    """What the program did on a kernel."""

    calls: list[Call] = Field([], max_length=10_000, description="by name and result")
    unfinished: Name | None = Field(None, description="the call in which the kernel crashed")
    ends: list[RunEnd] = Field([], max_length=10_000, description="how runs ended")
    reached: list[Reached] = Field(
        [], max_length=1000, description="functions of the crash's stack, innermost first"
    )


class Evidence(Strict):
    """Evidence for a verdict on a patched kernel, besides the absence of a crash."""

    controls: list[Control] = Field([], max_length=100)
    work: Work | None = None
    missing: list[Line] = Field(
        [], max_length=1000, description="evidence that could not be collected, and the reason"
    )
    seconds: Number = Field(0, description="how long it took")
