"""Patches on a tree: compute their changes before anything is written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym.host import separate_process
from kgym.source import patching
from kgym.source.patching import Change
from kgym_builder.kbuild import control
from kgym_builder.kbuild.working_tree import Tree

# Names of files that are looked for in the whole tree.
_MOST_MISPLACED = 200
P = TypeVar("P", bound=Patch)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch with its changes, and the previous contents of the files that existed."""

    patch: Patch
    before: dict[str, bytes]
    changes: tuple[Change, ...]


async def changes(
    tree: Tree, patches: Sequence[Patch], log: Callable[[str], None]
) -> tuple[Change, ...]:
    """Return what the patches, applied in order, change in the tree; the tree stays unchanged.

    Raises what `kgym.source.patching.apply` raises; `log` gets its remarks.
    """
    return in_all(await applied(tree, patches, await read(tree, patches), log))


async def read(
    tree: Tree, patches: Sequence[Patch], others: Iterable[str] = ()
) -> dict[str, bytes]:
    """Return the files of the tree that the patches name, and `others`, if they exist."""
    names, paths = await named(patches)
    for each in names:
        if isinstance(each, UserError):
            raise each
    return await tree.read(sorted({*paths, *others}))


async def named(patches: Sequence[Patch]) -> tuple[list[list[str] | UserError], set[str]]:
    """Return the paths that each patch names, or the error in it; and the paths of all."""
    names = await separate_process.call(weight(patches, {}), _named, patches)
    return names, {path for each in names if not isinstance(each, UserError) for path in each}


async def applied(
    tree: Tree, patches: Sequence[Patch], files: dict[str, bytes], log: Callable[[str], None]
) -> list[Applied]:
    """Apply patches in order to `files`, read from the tree; return what each changes."""
    # Large patches are applied in a process of their own: threads share the interpreter's lock and
    # cannot be stopped. Its start takes 0.4 s, so small patches are applied in a thread.
    done, notes = await with_misplaced(tree, files, apply_each, patches)
    for note in notes:
        log(note)
    return done


async def with_misplaced(
    tree: Tree,
    files: dict[str, bytes],
    work: Callable[[Sequence[P], dict[str, bytes]], T],
    patches: Sequence[P],
    known: Mapping[str, bytes] = MappingProxyType({}),
) -> T:
    """Call `work` on patches and the files that they change; return its result.

    For files that are not at their paths, those of the same name in the tree are added to `files`,
    with the contents in `known` if they are there.
    """
    names = await separate_process.call(weight(patches, {}), patching.misplaced, patches, [*files])
    if len(names) > _MOST_MISPLACED:
        what = f"over {_MOST_MISPLACED} files are not at their paths: give these from the top"
        raise UserError("patch_does_not_apply", what)
    if names:
        places = await tree.read(await tree.find(names))
        files |= {path: files.get(path, known.get(path, places[path])) for path in places}
    return await separate_process.call(weight(patches, files), work, patches, dict(files))


def in_all(done: Iterable[Applied]) -> tuple[Change, ...]:
    """Combine the changes of patches that were applied in order."""
    changed: dict[str, Change] = {}
    for each in done:
        for change in each.changes:
            changed[change.path] = change.after(changed)
    return tuple(changed.values())


def weight(patches: Sequence[Patch], files: Mapping[str, bytes]) -> int:
    """Return the weight of applying these patches, in the units of `separate_process`."""
    text = sum(
        len(patch.diff or "")
        + sum(len(edit.original) + len(edit.replacement) for edit in patch.edits)
        for patch in patches
    )
    places = sum(len(patch.edits) + (patch.diff or "").count("\n@@") for patch in patches)
    return 64 * text + (8 + places) * sum(map(len, files.values()))


def _named(patches: Sequence[Patch]) -> list[list[str] | UserError]:
    names: list[list[str] | UserError] = []
    for patch in patches:
        try:
            names.append(patching.files(patch))
        except UserError as error:
            names.append(error.with_traceback(None))
    return names


def apply_one(patch: Patch, files: Mapping[str, bytes]) -> patching.Applied:
    """Apply one patch; refuse it also if it touches our fault-raising object."""
    applied = patching.apply(patch, files)
    control.refuse(patch.name, files.get, applied.changes)
    return applied


def apply_each(
    patches: Sequence[Patch], files: dict[str, bytes]
) -> tuple[list[Applied], list[str]]:
    """Apply the patches in order and update `files`; return the results and the remarks."""
    done: list[Applied] = []
    notes: list[str] = []
    for patch in patches:
        applied = apply_one(patch, files)
        notes += applied.notes
        paths = [change.path for change in applied.changes]
        before = {path: files[path] for path in paths if path in files}
        done.append(Applied(patch, before, applied.changes))
        update(files, applied.changes)
    return done, notes


def update(files: dict[str, bytes], changes: Iterable[Change]) -> None:
    """Make the changes in `files`."""
    for change in changes:
        files.pop(change.path, None)
        if change.content is not None:
            files[change.path] = change.content
