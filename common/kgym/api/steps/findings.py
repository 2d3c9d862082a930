"""What compilers and reviews say about a kernel or a patch."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Strict


class Severity(StrEnum):
    """What a finding means for a trial of a fix."""

    NOTE = "note"
    """A hint for people: it does not keep the bug from being resolved."""
    BLOCKING = "blocking"
    """While it stands, the trial does not count as resolved, unless whoever asked accepts it."""


class Finding(Strict):
    """Something that a look at a patch or its kernel found; a verdict never rests on it alone."""

    check: Literal["amputation", "checkpatch", "smoke", "detector", "scope", "work"] = Field(
        description="amputation: what the patch cuts off; checkpatch: style; smoke: what the kernel"
        " no longer does; detector: whether the kernel can still tell of a bug; scope: what the"
        " patch touches; work: whether the reproducer still does its work"
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
