"""A program that shows a bug."""

from typing import Literal

from pydantic import Field, model_validator

from kgym.api import syz_program
from kgym.api.steps.base import Strict


class Reproducer(Strict):
    """A program that makes the kernel crash: C, or syzkaller's with its options in the header."""

    kind: Literal["c", "syz"] = "c"
    text: str = Field(min_length=1, max_length=1 << 20, description="the source")
    syzkaller: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9a-f]{40}$",
        description="commit of the syzkaller whose binaries run it; null: the worker's own",
    )

    @model_validator(mode="after")
    def _is_well_formed(self) -> "Reproducer":
        if self.kind == "syz":
            syz_program.check(self.text)
        elif self.syzkaller is not None:
            raise ValueError("`syzkaller` goes with the kind `syz`")
        return self
