"""Patches on a tree: what they change, found before anything is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kgym import patch as patching
from kgym.patch import Change
from kgym.steps import Patch
from kgym_builder import control
from kgym_builder.tree import Tree


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch, what it changes, and these files as they were before it, where they were."""

    patch: Patch
    before: dict[str, bytes]
    changes: tuple[Change, ...]


async def changes(
    tree: Tree, patches: Sequence[Patch], log: Callable[[str], None]
) -> tuple[Change, ...]:
    """Return what the patches, one after the other, change in the tree; it stays as it is.

    Raises UserError as `kgym.patch.apply` does. `log` gets its remarks.
    """
    return apply(patches, await read(tree, patches), log)


async def read(tree: Tree, patches: Sequence[Patch]) -> dict[str, bytes]:
    """Return the files of the tree that the patches name, where they are."""
    return await tree.read(sorted({path for patch in patches for path in patching.files(patch)}))


def apply(
    patches: Sequence[Patch], files: dict[str, bytes], log: Callable[[str], None]
) -> tuple[Change, ...]:
    """Do the same for files that were read; `files` follows."""
    each = apply_each(patches, files, log)
    return tuple({change.path: change for one in each for change in one.changes}.values())


def apply_one(patch: Patch, read: patching.Read) -> patching.Applied:
    """Apply one patch; beyond what `kgym.patch.apply` refuses, it must leave our object alone."""
    applied = patching.apply(patch, read)
    control.refuse(patch.name, read, applied.changes)
    return applied


def apply_each(
    patches: Sequence[Patch], files: dict[str, bytes], log: Callable[[str], None]
) -> Iterator[Applied]:
    """Do so patch by patch."""
    for patch in patches:
        applied = apply_one(patch, files.get)
        for note in applied.notes:
            log(note)
        paths = [change.path for change in applied.changes]
        yield Applied(
            patch, {path: files[path] for path in paths if path in files}, applied.changes
        )
        for change in applied.changes:
            files.pop(change.path, None)
            if change.content is not None:
                files[change.path] = change.content
