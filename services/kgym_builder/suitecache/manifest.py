"""Manifests: the files of a source tree with their hashes, to compare two trees.

A manifest is a text of lines `MODE HASH PATH`, sorted by path. MODE is `x` for an executable file,
else `-`; HASH is the first 40 digits of the content's SHA-256. One line, `l HASH .`, stands for all
symbolic links.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgym.errors import UserError
from kgym_builder.kbuild.working_tree import Tree

READ_SECONDS = 1200.0
MOST_OUTPUT = 1 << 30
# Files of a tree; a kernel's has 80,000.
MOST_FILES = 1_000_000
# The path that stands for all symbolic links.
LINKS = "."
_DIGITS = 40
# Almost no pipes, as a pipe hides failures, and a manifest with gaps would make unequal trees look
# equal. sha256sum marks odd names with a backslash, which `_SUM` refuses. Each process writes a
# file of its own: in a shared one, lines would mix.
_READ = Path(__file__).with_name("manifest.sh").read_text()
_SUM = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
_LINE = re.compile(r"([lx-]) ([0-9a-f]{40}) (.+)")


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that turn one tree into another."""

    changed: tuple[str, ...]
    """Files that are new, or differ in content or mode."""
    added: tuple[str, ...]
    """The new ones among `changed`."""
    removed: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All files that differ."""
        return (*self.changed, *self.removed)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a tree: mode and hash, `x 0123…`, by path."""

    files: Mapping[str, str]

    @classmethod
    async def read(cls, tree: Tree) -> "Manifest":
        """Read a tree in the sandbox; raise UserError for names that no line can hold."""
        files: dict[str, str] = {}
        mode = "?"

        def take(line: bytes) -> None:
            nonlocal mode
            text = line.decode(errors="surrogateescape")
            if text.startswith("="):
                mode = text[1:]
            elif match := _SUM.fullmatch(text):
                path = LINKS if mode == "l" else match[2]
                files[path] = f"{mode} {match[1][:_DIGITS]}"
            else:
                raise UserError("odd_names", f"the source has a file with an odd name: {text!r}")
            if len(files) > MOST_FILES:
                raise UserError("too_many_files", f"the source has over {MOST_FILES:,} files")

        await tree.run(
            ["sh", "-c", _READ], timeout=READ_SECONDS, on_line=take, most_output=MOST_OUTPUT
        )
        return cls(files)

    @classmethod
    def parse(cls, text: bytes) -> "Manifest":
        """Parse a manifest; raise ValueError if the text is none."""
        files = {}
        for line in text.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a line of a manifest: {line[:200]!r}")
            files[match[3]] = f"{match[1]} {match[2]}"
        return cls(files)

    def text(self) -> bytes:
        """Return the manifest as text."""
        lines = (f"{what} {path}\n" for path, what in sorted(self.files.items()))
        return "".join(lines).encode(errors="surrogateescape")

    @property
    def digest(self) -> str:
        """SHA-256 of the text: equal for equal files."""
        return hashlib.sha256(self.text()).hexdigest()

    def executable(self, path: str) -> bool:
        """Return whether the file is executable."""
        return self.files[path].startswith("x")

    def since(self, before: "Manifest") -> Difference:
        """Return what turns the tree `before` into this one."""
        new = {path for path, what in self.files.items() if before.files.get(path) != what}
        return Difference(
            changed=tuple(sorted(new)),
            added=tuple(sorted(new - before.files.keys())),
            removed=tuple(sorted(before.files.keys() - self.files.keys())),
        )
