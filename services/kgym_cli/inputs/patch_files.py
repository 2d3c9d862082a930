"""Patch files, and the files of a sweep by bug."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kgym.api.faults import refused_at
from kgym.api.steps import Patch
from kgym.bugs.bug import Bug
from kgym.bugs.sweep import Candidate
from kgym.errors import UserError, file_errors
from kgym.source import diff_text, patching
from kgym_cli.inputs import compressed_files
from kgym_cli.settings import settings

_PATCH = re.compile(r"[^.].*\.(patch|diff|eml|mbox)(\.(gz|xz|zst|bz2))?", re.DOTALL)

# Most bytes of a patch file; the model has the actual limit of a job.
LARGEST_PATCH = 64 << 20


def patch_file(path: Path) -> Patch:
    """Read a diff, or mails with diffs, from a file in any encoding, compressed or not.

    `-` is standard input. Raises UserError `empty_patch`, `malformed_patch`, … if it is no patch.
    """
    patch = patch_text(path)
    patching.files(patch)
    return patch


def patch_text(path: Path) -> Patch:
    """Read a patch file without parsing it."""
    name = compressed_files.name(path).encode(errors="replace").decode()[:200]
    with refused_at(str(path), "patch_too_large"):
        text = diff_text.decode(compressed_files.read(path, LARGEST_PATCH), str(path))
        return Patch(name=name, diff=text, drop_binaries=settings().drop_binaries)


@dataclass(frozen=True, slots=True)
class Found:
    """Patch files by bug and name, and ignored folders."""

    files: Mapping[str, Mapping[str, Path]]
    left_out: Sequence[Path]


def find(bugs: Iterable[Bug], places: Iterable[Path]) -> Found:
    """Find patches and mails: `DIR/BUG/*` for that bug, `DIR/*` and single files for all.

    Raises UserError `cannot_read` for a missing place, and `no_patches`.
    """
    names = [bug.name for bug in bugs]
    paths: dict[str, list[Path]] = {name: [] for name in names}
    left_out = []
    # A folder that is named twice counts once; order decides the order of rows.
    for place in dict.fromkeys(places):
        for own in paths.values():
            own.extend([place] if place.is_file() else _patches(place))
        for folder in sorted(_folders(place)):
            if folder.name in paths:
                paths[folder.name].extend(_patches(folder))
            elif any(_patches(folder)):
                left_out.append(folder)
    if not any(paths.values()):
        looked = ", ".join(map(str, places))
        raise UserError(
            "no_patches",
            f"no *.patch, *.diff, *.eml or *.mbox for these bugs in {looked}; name other folders",
        )
    return Found({name: _named(own) for name, own in paths.items()}, left_out)


def candidates(files: Mapping[str, Path]) -> list[Candidate]:
    """Read the patches; the candidate of an unreadable one holds the error."""
    return [Candidate(name, _read(path)) for name, path in files.items()]


def default_name(bugs: Sequence[str], places: Sequence[Path]) -> str:
    """Return the default name of a sweep, derived from its bugs and places."""
    # Not from the files' contents: patches that were added later belong to the same sweep.
    where = sorted(str(place.resolve()) for place in places)
    folders = sorted(str(Path(bug).resolve()) if Path(bug).is_dir() else bug for bug in bugs)
    named = sha256(json.dumps([folders, where]).encode()).hexdigest()[:10]
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", places[0].resolve().name)[:60]
    return f"sweep-{stem}-{named}"


def _patches(folder: Path) -> list[Path]:
    return sorted(path for path in _listed(folder) if _PATCH.fullmatch(path.name))


def _folders(place: Path) -> Iterator[Path]:
    if not place.is_file():
        yield from (path for path in _listed(place) if path.is_dir())


def _listed(folder: Path) -> list[Path]:
    with file_errors(folder, "cannot_read"):
        return list(folder.iterdir())


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files by name without compression suffix; by path if names clash."""
    short = {path: _text(compressed_files.name(path)) for path in dict.fromkeys(paths)}
    seen = Counter(short.values())
    return {name if seen[name] == 1 else _text(str(path)): path for path, name in short.items()}


def _read(path: Path) -> Patch | UserError:
    try:
        if not path.is_file():  # opening a FIFO would block
            raise UserError("cannot_read", f"{path} is not a regular file")
        return patch_file(path)
    except UserError as error:
        return error


def _text(name: str) -> str:
    return name.encode(errors="replace").decode()
