"""Backports: changes that old kernels need before a new toolchain compiles them.

The shipped ones are data, `configs/backports/*.toml`; a job may bring its own. Each says when it
applies. One that applies by its rules and that the tree has already is left out; so is a shipped
one whose originals are not in the tree.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kgym.api.steps import Backport, Edit, Patch
from kgym.errors import UserError
from kgym.host import separate_process
from kgym.source import patching
from kgym.source.patching import Change
from kgym_builder.kbuild import control
from kgym_builder.kbuild.kbuild import kernel_version
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files
from kgym_builder.patches.patched_files import Applied
from kgym_builder.toolchains.toolchain import Toolchain

# Of the hash that tells jobs' backports apart: nobody finds another text for one.
_DIGITS = 16


class ShippedBackport(Backport):
    """One of `configs/backports`; `name` is its file's name."""

    summary: str
    references: list[str]


@dataclass(frozen=True, slots=True)
class Backported:
    """What backports did to a source."""

    names: list[str]
    """Those that were applied; of a job's own, the name and a hash of the text."""
    left_out: list[str]
    """Those that apply by their rules, and whose places are not in the source."""
    applied: list[Applied]


def load(folder: Path) -> list[ShippedBackport]:
    """Read the backports of a folder, ordered by name."""
    return [
        ShippedBackport.model_validate({"name": path.stem, **tomllib.loads(path.read_text())})
        for path in sorted(folder.glob("*.toml"))
    ]


def chosen(shipped: Sequence[ShippedBackport], own: Sequence[Backport]) -> list[Backport]:
    """Return the backports of a job in their order: its own take the places of their namesakes."""
    names = {backport.name for backport in own}
    return [*(backport for backport in shipped if backport.name not in names), *own]


def fits(backport: Backport, kernel: str, tools: Toolchain) -> bool:
    """Tell whether a backport's rules hold for a kernel and a compiler."""
    when = backport.when
    version = _key(kernel)
    compiler = _key(tools.number)
    return (
        (when.kernel_before is None or version < _key(when.kernel_before))
        and (when.kernel_from is None or version >= _key(when.kernel_from))
        and (when.compiler is None or tools.family == when.compiler)
        and (when.compiler_from is None or compiler >= _key(when.compiler_from))
        and (when.compiler_before is None or compiler < _key(when.compiler_before))
    )


async def apply_to(
    tree: Tree, backports: Sequence[Backport], tools: Toolchain, log: Callable[[str], None]
) -> tuple[list[str], tuple[Change, ...]]:
    """Apply the backports that fit to a source tree, and add the object that raises faults.

    Return their names and all changes. Raises UserError for a backport that cannot be read, and
    as `apply` does.
    """
    files = await patched_files.read(tree, backports, ("Makefile", control.MAKEFILE))
    version = kernel_version(files.get("Makefile", b"").decode(errors="replace"))
    done = await apply([each for each in backports if fits(each, version, tools)], files)
    log(f"backports: {', '.join(done.names) or 'none'}")
    if done.left_out:
        names = ", ".join(done.left_out)
        log(f"backports left out, which the source has or does not need: {names}")
    added = control.changes(files.get(control.MAKEFILE))
    changes = (*patched_files.in_all(done.applied), *added)
    await tree.write(changes)
    return done.names, changes


async def apply(backports: Sequence[Backport], files: Mapping[str, bytes]) -> Backported:
    """Apply them, one after the other, to files that were read.

    Raises UserError as patches do for a job's own that neither applies nor is there already.
    """
    weight = patched_files.weight(backports, files)
    return await separate_process.call(weight, _apply, backports, dict(files))


def _apply(backports: Sequence[Backport], files: dict[str, bytes]) -> Backported:
    done = Backported([], [], [])
    for backport in backports:
        patch = Patch(name=f"backport {backport.name}", diff=backport.diff, edits=backport.edits)
        try:
            applied = [] if _has_edits(patch, files) else _changed(patch, files)
        except UserError:
            if not isinstance(backport, ShippedBackport) and not _has_diff(patch, files):
                raise
            applied = []
        if not applied:
            done.left_out.append(backport.name)
            continue
        done.names.append(_label(backport))
        done.applied.extend(applied)
    return done


def _changed(patch: Patch, files: dict[str, bytes]) -> list[Applied]:
    return patched_files.apply_each([patch], files)[0]


def _has_edits(patch: Patch, files: Mapping[str, bytes]) -> bool:
    """Tell whether the files have the edits already, of which some may leave the original there."""
    texts = [(files.get(edit.file), edit) for edit in patch.edits]
    return bool(texts) and all(text is not None and _has(text, edit) for text, edit in texts)


def _has(text: bytes, edit: Edit) -> bool:
    original, replacement = edit.original.encode(), edit.replacement.encode()
    return replacement in text and (original in replacement or original not in text)


def _has_diff(patch: Patch, files: Mapping[str, bytes]) -> bool:
    if patch.diff is None:
        return False
    try:
        patching.apply(patching.reverse(patch), files.get)
    except UserError:
        return False
    return True


def _label(backport: Backport) -> str:
    if isinstance(backport, ShippedBackport):
        return backport.name
    text = backport.model_dump_json(include={"diff", "edits"})
    return f"{backport.name}@{sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _key(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")[:3] if part.isdecimal()]
    return tuple(numbers + [0] * (3 - len(numbers)))
