"""Backports: changes that old kernels need before a new toolchain compiles them.

The shipped ones are data, `configs/backports/*.toml`; a job may bring its own. Each says when it
applies. A backport is left out if the tree has it already; a shipped one also if the code that it
changes is not in the tree.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kgym.api.steps import Backport, Edit, Patch
from kgym.errors import UserError
from kgym.source import patching
from kgym.source.patching import Change
from kgym_builder.kbuild import control, kconfig
from kgym_builder.kbuild.kbuild import kernel_version
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files
from kgym_builder.patches.patched_files import Applied
from kgym_builder.toolchains.toolchain import Toolchain

# Digits of the hash that tells jobs' own backports apart: 64 bits, against forged collisions.
_DIGITS = 16


class ShippedBackport(Backport):
    """One of `configs/backports`; `name` is its file's name."""

    summary: str
    references: list[str]


@dataclass(frozen=True, slots=True)
class Backported:
    """The effect of backports on a source."""

    names: list[str]
    """Applied backports; a job's own has a hash of its text behind the name."""
    left_out: list[str]
    """Backports that fit kernel and compiler, but are in the source already or find no place."""
    applied: list[Applied]


def load(folder: Path) -> list[ShippedBackport]:
    """Read the backports of a folder, ordered by name."""
    return [
        ShippedBackport.model_validate({"name": path.stem, **tomllib.loads(path.read_text())})
        for path in sorted(folder.glob("*.toml"))
    ]


def chosen(shipped: Sequence[ShippedBackport], own: Sequence[Backport]) -> list[Backport]:
    """Return a job's backports in order; its own replace shipped ones of the same name."""
    names = {backport.name for backport in own}
    return [*(backport for backport in shipped if backport.name not in names), *own]


def fits(backport: Backport, kernel: str, tools: Toolchain) -> bool:
    """Return whether a backport is meant for this kernel and compiler."""
    # Rules name kernel and compiler only. A backport that binutils, make or the C library need is
    # shipped for all kernels before the fix.
    when = backport.when
    version = kconfig.numbers(kernel)
    compiler = kconfig.numbers(tools.number)
    return (
        (when.kernel_before is None or version < kconfig.numbers(when.kernel_before))
        and (when.kernel_from is None or version >= kconfig.numbers(when.kernel_from))
        and (when.compiler is None or tools.family == when.compiler)
        and (when.compiler_from is None or compiler >= kconfig.numbers(when.compiler_from))
        and (when.compiler_before is None or compiler < kconfig.numbers(when.compiler_before))
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
    fitting = [backport for backport in backports if fits(backport, version, tools)]
    done = await patched_files.with_misplaced(tree, files, apply, fitting)
    log(f"backports: {', '.join(done.names) or 'none'}")
    if done.left_out:
        names = ", ".join(done.left_out)
        log(f"backports left out, which the source has or does not need: {names}")
    added = control.changes(files.get(control.MAKEFILE))
    changes = (*patched_files.in_all(done.applied), *added)
    await tree.write(changes)
    return done.names, changes


def apply(backports: Sequence[Backport], files: dict[str, bytes]) -> Backported:
    """Apply backports in order, and update `files`.

    Raises UserError, as patches do, if a job's own neither applies nor is in the source already.
    """
    done = Backported([], [], [])
    for backport in backports:
        patch = Patch(name=f"backport {backport.name}", diff=backport.diff, edits=backport.edits)
        try:
            applied = [] if _has_edits(patch, files) else _changed(patch, files)
        except UserError:
            # A shipped one that does not apply is not needed: the kernel has it, or differs. A
            # job's own was asked for, so its failure is reported.
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
    """Return whether the files have the edits already; a replacement may contain the original."""
    texts = [(files.get(edit.file), edit) for edit in patch.edits]
    return bool(texts) and all(text is not None and _has(text, edit) for text, edit in texts)


def _has(text: bytes, edit: Edit) -> bool:
    original, replacement = edit.original.encode(), edit.replacement.encode()
    return replacement in text and (original in replacement or original not in text)


def _has_diff(patch: Patch, files: Mapping[str, bytes]) -> bool:
    if patch.diff is None:
        return False
    try:
        patching.apply(patching.reverse(patch), files)
    except UserError:
        return False
    return True


def _label(backport: Backport) -> str:
    if isinstance(backport, ShippedBackport):
        return backport.name
    # Anybody may use any name, so a job's own is named with a hash of its text.
    text = backport.model_dump_json(include={"diff", "edits"})
    return f"{backport.name}@{sha256(text.encode()).hexdigest()[:_DIGITS]}"
