"""Patches on a tree: what they change, found before anything is written."""

from collections.abc import Callable, Sequence

from kgym import patch as patching
from kgym.patch import Change
from kgym.steps import Patch
from kgym_builder.tree import Tree


async def changes(
    tree: Tree, patches: Sequence[Patch], log: Callable[[str], None]
) -> tuple[Change, ...]:
    """Return what the patches, one after the other, change in the tree; it stays as it is.

    Raises UserError as `kgym.patch.apply` does. `log` gets its remarks.
    """
    paths = {path for patch in patches for path in patching.files(patch)}
    return apply(patches, await tree.read(sorted(paths)), log)


def apply(
    patches: Sequence[Patch], files: dict[str, bytes], log: Callable[[str], None]
) -> tuple[Change, ...]:
    """Do the same for files that were read; `files` follows."""
    changed: dict[str, Change] = {}
    for patch in patches:
        applied = patching.apply(patch, files.get)
        for note in applied.notes:
            log(note)
        for change in applied.changes:
            changed[change.path] = change
            files.pop(change.path, None)
            if change.content is not None:
                files[change.path] = change.content
    return tuple(changed.values())
