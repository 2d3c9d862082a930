"""Publicly fixed bugs: syzbot's report and the fix, in kBenchSyz's file format."""

from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field

from kgym.api.faults import refused_at
from kgym.api.steps import Patch
from kgym.errors import UserError, file_errors
from kgym.source import patching

# Maximum bytes of a bug's file; those of kBenchSyz have 100 kB.
_MOST_BYTES = 8 << 20


class FixCommit(BaseModel):
    """The commit that fixed a bug."""

    title: str = Field("", max_length=1000)
    hash: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]*$")] = ""


class FixedBug(BaseModel):
    """The fields of a bug's file that are used here; it has more."""

    id: str = Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")
    title: str = Field(min_length=1, max_length=1000)
    patch: str = Field(min_length=1, description="the fix, as a unified diff")
    commits: list[FixCommit] = Field([], validation_alias=AliasChoices("fix-commits", "commits"))

    @property
    def fix(self) -> Patch:
        """The public fix."""
        return Patch(name="fix", diff=self.patch)

    def regress(self) -> Patch:
        """Return the patch that brings the bug back: its fix, reversed; raise UserError."""
        return patching.reverse(self.fix).model_copy(update={"name": "regress"})


def read(path: Path) -> FixedBug:
    """Read a bug's file; raise UserError `bad_fixed_bug` naming the file and the wrong fields."""
    with file_errors(path, "bad_fixed_bug"), refused_at(str(path), "bad_fixed_bug"):
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise UserError("bad_fixed_bug", f"{path}: no file of at most {_MOST_BYTES >> 20} MiB")
        return FixedBug.model_validate_json(path.read_bytes())
