"""The code blocks of README and the pages.

What stands behind a block's language says how it is tried:

- nothing: it runs as it is written, on a platform whose steps are answered at once;
- `slow: FILE`: it takes a kernel, servers or hosts, and the tests of this file do the same;
- `cloud: WHY`: it cannot be run here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "configs" / "skills" / "kgym" / "SKILL.md",
    ROOT / "docker" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^```(sh|console|python)\b *(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


@dataclass(frozen=True)
class CodeBlock:
    """A block of commands or of Python."""

    page: Path
    language: str
    how: str
    why: str
    text: str


def code_blocks(page: Path) -> Iterator[CodeBlock]:
    """Yield the blocks of a page, in order."""
    for language, info, text in _BLOCK.findall(page.read_text()):
        how, _, why = info.partition(": ")
        yield CodeBlock(page, language, how, why, text)
