"""Backports: changes that old kernels need before a new toolchain compiles them.

The shipped ones are data, `configs/backports/*.toml`; a job may bring its own. Each says when it
applies. One that applies by its rules and that the tree has already is left out; so is a shipped
one whose originals are not in the tree.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kgym.api.steps import Backport, Edit, Patch
from kgym.errors import UserError
from kgym.host import separate_process
from kgym.source import patching
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


async def paths(backports: Sequence[Backport]) -> list[str]:
    """Return the files that they change; raise UserError for one that cannot be read."""
    changed: set[str] = set()
    for named in await patched_files.named(backports):
        if isinstance(named, UserError):
            raise named
        changed.update(named)
    return sorted(changed)


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
