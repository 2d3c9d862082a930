"""Build an entry from the nearest one: copy the files that differ, and let make do the rest.

The tree is an overlay on the nearest entry's image, which stays unchanged. A whole tree is packed
in the end, so the new entry does not depend on the other one.

Make itself decides what to build, not an index of ours: it knows commands, config symbols and
dependencies, and compares times. So files that differ are written anew, and are newer than all
objects. What make would not notice is removed: objects whose sources are gone, objects that may now
include a new header, and, after the build, objects that are no longer part of the kernel.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.host.sandbox import Layer
from kgym.source.patching import Change
from kgym_builder.kbuild import control, kconfig
from kgym_builder.kbuild.kbuild import TreeUnreadable
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.path_rules import MAKEFILE
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import Identified
from kgym_builder.suitecache.manifest import Manifest
from kgym_builder.suitecache.nearest import Candidate
from kgym_builder.suitecache.tree_build import Compiled, TreeBuild, of_modules

# Largest share of objects to compile; beyond it, a build from scratch takes hardly longer.
WORTH = 0.6
# Source files that are copied at a time.
_AT_ONCE = 200
# Make compares times only. Objects from a host whose clock is ahead would look newer than changes.
_NOT_AHEAD = "touch /tmp/now && [ ! vmlinux -nt /tmp/now ]"


class NotNear(UserError):
    """No entry can be made from this one; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Base:
    """The entry that another is made from, on this host."""

    candidate: Candidate
    folder: Path
    layer: Layer
    root: Layer | None
    doubt: Callable[[], None]

    @property
    def index(self) -> Index:
        """The index of its objects."""
        return Index(self.folder / compiled_trees.INDEX)


async def compile_near(
    base: Base, full: TreeBuild, identified: Identified, manifest: Manifest, folder: Path
) -> tuple[TreeBuild, Compiled]:
    """Make the kernel of the source in `full.tree` on top of the base, in the new `folder`.

    Raises NotNear if this fails or is not worth it; the kernel may still build from scratch.
    """
    tree = Tree((base.layer,), folder, full.limits, root=base.root)
    build = replace(full, tree=tree)
    name = base.candidate.identity
    try:
        return build, await _compile(base, build, identified, full.tree, manifest)
    except TreeUnreadable as error:
        base.doubt()
        reason = f"{name} is damaged: {error.message}"
    except (UserError, proc.ProgramFailed) as error:
        # Errors in the kernel's source end up here, too: the build from scratch reports them.
        reason = f"not from {name}: {error.message}"
    await asyncio.to_thread(sandbox.remove, folder)
    raise NotNear("not_near", reason)


async def _compile(
    base: Base, build: TreeBuild, identified: Identified, source: Tree, manifest: Manifest
) -> Compiled:
    files = base.candidate.files
    objects, gone = await asyncio.to_thread(_affected, base)
    if objects > WORTH * (number := base.index.number()):
        raise NotNear("not_near", f"{objects} of {number} objects would be compiled")
    tree = build.tree
    done = await tree.run(["sh", "-c", _NOT_AHEAD], check=False)
    if done.returncode:
        raise NotNear("not_near", "it was made by a host whose clock is ahead of this one's")
    there = compiled_trees.linked_in(base.folder)
    if kconfig.modules(base.candidate.about.config):
        there |= set(await of_modules(tree))
    changed = list(files.changed)
    if base.candidate.about.lacking and control.PATH not in changed:
        changed.append(control.PATH)  # the base has only part of it
    await tree.write([Change(path, None) for path in files.removed])
    await _copy(source, tree, manifest, [path for path in changed if path in manifest.files])
    await tree.run_on(gone, "rm", "-f", "--")
    return await build.compile(identified, objects or None, there)


def _affected(base: Base) -> tuple[int, list[str]]:
    """Return how many objects to compile, and which of them may now include a new header.

    Makefiles are left out: make compares their commands with those that it saved.
    """
    files, index = base.candidate.files, base.index
    known = index.dependents(path for path in files.paths if not MAKEFILE.match(path))
    objects = {obj.path for of in known.values() for obj in of.objects}
    objects |= {f"{path[:-2]}.o" for path in files.added if path.endswith((".c", ".S"))}
    hidden = index.of_namesakes(path for path in files.added if path.endswith(".h"))
    return len(objects | hidden), sorted(hidden)


async def _copy(source: Tree, tree: Tree, manifest: Manifest, paths: list[str]) -> None:
    """Copy files from one tree to another, a few at a time."""
    for start in range(0, len(paths), _AT_ONCE):
        lot = paths[start : start + _AT_ONCE]
        read = await source.read(lot)
        await tree.write(
            [Change(path, read[path], executable=manifest.executable(path)) for path in lot]
        )
