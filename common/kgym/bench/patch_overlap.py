"""Which files and functions a patch changes, and how much of that two patches share. Pure.

As in Live-kBench section 4.2 (root cause localization), files are those of C and assembly.
Functions are found by the syntax tree of the whole files before and after each patch, so that a
hunk's context, which names the function before it, misleads nobody.
"""

from dataclasses import dataclass

from kgym.api.steps import Patch
from kgym.bench.attempt_record import Overlap
from kgym.source import edited_functions, patching
from kgym.source.patching import Read

SOURCES = (".c", ".h", ".S", ".s", ".cc", ".cpp", ".cxx", ".hh", ".hpp")
_PARSED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp")


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """What a patch changes; a function is its file and its name."""

    files: frozenset[str]
    functions: frozenset[tuple[str, str]]


def changed_parts(change: str | Patch, read: Read) -> ChangedParts:
    """Return what a diff, or a patch, changes in the tree that `read` reads.

    Raises UserError as `kgym.source.patching.apply` does, where it does not apply.
    """
    patch = Patch(name="patch", diff=change) if isinstance(change, str) else change
    applied = patching.apply(patch, read)
    files, functions = set(), set()
    for one in applied.changes:
        if not one.path.endswith(SOURCES):
            continue
        files.add(one.path)
        if one.path.endswith(_PARSED):
            before, after = _text(read(one.path)), _text(one.content)
            names = edited_functions.changed(before, after)
            functions |= {(one.path, name) for name in names}
    return ChangedParts(frozenset(files), frozenset(functions))


def overlap(one: ChangedParts, other: ChangedParts) -> tuple[Overlap, Overlap]:
    """Return the overlap of the files, and of the functions, of two patches."""
    return (
        Overlap(common=len(one.files & other.files), all=len(one.files | other.files)),
        Overlap(
            common=len(one.functions & other.functions),
            all=len(one.functions | other.functions),
        ),
    )


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")
