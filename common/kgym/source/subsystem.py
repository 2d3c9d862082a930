"""The subsystem of a kernel's file, as the subjects of patches name it. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import takewhile

# A part of a subject before a colon that names subsystems, such as `bpf, arm64`.
_SUBSYSTEM = re.compile(r"[\w/.+*\[\]-]+(?:, ?[\w/.+*\[\]-]+)*")
# Folders whose files are subsystems of their own.
_MIXED = {"fs", "kernel", "lib", "mm"}
# Characters of a pattern in MAINTAINERS: matching longer ones could take long.
_LONGEST_PATTERN = 100


def subsystem(subjects: Iterable[str], path: str, maintainers: str) -> str:
    """Return the subsystem of a file: as most subjects name it, or by MAINTAINERS, or its path."""
    used = Counter(filter(None, map(_subsystem, subjects)))
    if used:
        return used.most_common(1)[0][0]
    entries = (line[2:].strip() for line in maintainers.splitlines() if line.startswith("F:"))
    name = max(filter(lambda each: _covers(each, path), entries), key=len, default="")
    name = name.rstrip("/*").rpartition("/")[2]
    *folders, last = path.split("/")
    if name in _MIXED or "?" in name or not (name or folders[1:]):
        name = last
    return re.sub(r"\.\w+$|[*\[\]]", "", name or folders[-1])


def _subsystem(subject: str) -> str:
    """Return the words of a subject that name subsystems, without their last colon."""
    return ": ".join(takewhile(_SUBSYSTEM.fullmatch, subject[:100].split(": ")[:-1]))


def _covers(pattern: str, path: str) -> bool:
    """Return whether an entry `F:` of MAINTAINERS covers a file; a folder covers all below it."""
    begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if not begin or not path.startswith(begin.rstrip("/")) or len(pattern) > _LONGEST_PATTERN:
        return False
    return path.startswith(f"{pattern.rstrip('/')}/") or fnmatchcase(path, pattern)
