"""The files and functions that a patch changes, and the overlap of two patches. Pure.

As in Live-kBench section 4.2 (root cause localization), only C and assembly files count. Functions
are taken from the syntax trees of the files before and after the patch: a hunk header names the
function before the hunk, which need not be the changed one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kgym.api.steps import Patch
from kgym.bench.attempt_record import Overlap
from kgym.source import edited_functions, patching

SOURCES = (".c", ".h", ".S", ".s", ".cc", ".cpp", ".cxx", ".hh", ".hpp")
_PARSED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp")


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """The parts that a patch changes; a function is a pair of file and name."""

    files: frozenset[str]
    functions: frozenset[tuple[str, str]]


def changed_parts(patch: str | Patch, tree: Mapping[str, bytes]) -> ChangedParts:
    """Return what a diff, without its binary files, or a patch changes in a tree.

    Raises UserError as `kgym.source.patching.apply` does if it does not apply.
    """
    if isinstance(patch, str):
        patch = Patch(name="patch", diff=patch, drop_binaries=True)
    applied = patching.apply(patch, tree)
    files, functions = set(), set()
    for change in applied.changes:
        if not change.path.endswith(SOURCES):
            continue
        files.add(change.path)
        if change.path.endswith(_PARSED):
            before, after = _text(tree.get(change.path)), _text(change.content)
            names = edited_functions.changed(before, after)
            functions |= {(change.path, name) for name in names}
    return ChangedParts(frozenset(files), frozenset(functions))


def overlap(ours: ChangedParts, theirs: ChangedParts) -> tuple[Overlap, Overlap]:
    """Return the overlaps of the files and of the functions of two patches."""
    return (
        Overlap(common=len(ours.files & theirs.files), all=len(ours.files | theirs.files)),
        Overlap(
            common=len(ours.functions & theirs.functions),
            all=len(ours.functions | theirs.functions),
        ),
    )


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")
