"""What compilers and reviews say about a kernel or a patch."""

from typing import Literal

from pydantic import Field

from kgym.steps.model import Strict


class Finding(Strict):
    """Something that a look at a patch or its kernel found: a hint for people, never a verdict."""

    check: Literal["amputation", "checkpatch", "smoke"]
    reason: str = Field(description="a short stable word, e.g. `check_removed`")
    message: str
    file: str | None = None
    line: int | None = Field(None, description="in the file after the patch, else before it")
    function: str | None = None


class Diagnostic(Strict):
    """One message of the compiler, assembler or linker."""

    file: str
    line: int | None = None
    column: int | None = None
    severity: Literal["error", "warning"]
    message: str
