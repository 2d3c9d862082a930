"""Backports: changes that old kernels need before a new toolchain compiles them.

They are data, `configs/backports/*.toml`; each says when it applies. One that
applies by its rules and whose originals are not in the tree is left out: the
kernel has it already.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from kgym.api.steps import Edit, Patch, Strict


class When(Strict):
    """The kernels and compilers that need the backport; versions as dotted numbers."""

    kernel_before: str | None = None
    kernel_from: str | None = None
    compiler: str | None = None
    compiler_from: str | None = None


class Backport(Strict):
    """One backport; `name` is its file's name."""

    name: str
    summary: str
    references: list[str] = []
    when: When
    edits: list[Edit]

    def applies(self, kernel: str, compiler: str, compiler_version: str) -> bool:
        """Whether the rules hold for this kernel, and this compiler (`gcc` or `clang`)."""
        when = self.when
        return (
            (when.kernel_before is None or _key(kernel) < _key(when.kernel_before))
            and (when.kernel_from is None or _key(kernel) >= _key(when.kernel_from))
            and (when.compiler is None or compiler == when.compiler)
            and (when.compiler_from is None or _key(compiler_version) >= _key(when.compiler_from))
        )

    def patch(self, read: Callable[[str], bytes | None]) -> Patch | None:
        """Return the change, or None if the tree does not have all its originals once."""
        for edit in self.edits:
            content = read(edit.file)
            if content is None or content.count(edit.original.encode()) != 1:
                return None
        return Patch(name=f"backport {self.name}", edits=self.edits)


def load(folder: Path) -> list[Backport]:
    """Read the backports of a folder, ordered by name."""
    return [
        Backport.model_validate({"name": path.stem, **tomllib.loads(path.read_text())})
        for path in sorted(folder.glob("*.toml"))
    ]


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
