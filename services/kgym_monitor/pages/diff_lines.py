"""Numbered lines of a unified diff, for the diff view. Pure; linear time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym.source import patching

# Most lines of a patch on a page.
SHOWN = 4000
_KINDS = {"+": "added", "-": "removed"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line; `kind` is `added`, `removed`, `same` or `hunk`."""

    kind: str
    text: str
    old: int | None = None
    new: int | None = None


@dataclass(slots=True)
class ChangedFile:
    """A patch's changes to one file."""

    path: str
    lines: list[Line] = field(default_factory=list)
    added: int = 0
    removed: int = 0


@dataclass(slots=True)
class ShownPatch:
    """A patch by file; `left_out` lines are not shown, but their files are in `paths`."""

    files: list[ChangedFile]
    paths: set[str]
    left_out: int = 0


def files(patch: Patch) -> ShownPatch:
    """Return at most SHOWN lines of the patch; they are shared, and must not be changed."""
    if patch.diff is None:
        return _cut(_of_edits(patch))
    return _of_text(patch.name, patch.diff, patch.drop_binaries)


# Every poll of a job's page shows its patch: 4 MiB take a third of a second to read.
@lru_cache(maxsize=16)
def _of_text(name: str, diff: str, drop_binaries: bool) -> ShownPatch:
    patch = Patch.model_construct(name=name, diff=diff, edits=[], drop_binaries=drop_binaries)
    return _cut(_of_diff(patch))


def _cut(lines: Iterable[tuple[str, Line]]) -> ShownPatch:
    shown = ShownPatch([], set())
    for number, (path, line) in enumerate(lines):
        shown.paths.add(path)
        if number >= SHOWN:
            shown.left_out += 1
            continue
        if not shown.files or shown.files[-1].path != path:
            shown.files.append(ChangedFile(path))
        file = shown.files[-1]
        file.lines.append(line)
        file.added += line.kind == "added"
        file.removed += line.kind == "removed"
    return shown


def _of_diff(patch: Patch) -> Iterator[tuple[str, Line]]:
    try:
        diffs = patching.diffs(patch)
    except UserError:  # shown as it is
        diffs = []
        for text in (patch.diff or "").split("\n"):
            yield "", Line(_KINDS.get(text[:1], "same"), text)
    for diff in diffs:
        for hunk in diff.hunks:
            old, new = hunk.old or 0, hunk.new or 0
            yield diff.paths[1], Line("hunk", hunk.header)
            for text in hunk.readings[0]:
                was, now = text[0] != "+", text[0] != "-"
                line = text[1:].removesuffix("\n")
                kind = _KINDS.get(text[0], "same")
                yield diff.paths[1], Line(kind, line, old if was else None, new if now else None)
                old, new = old + was, new + now


def _of_edits(patch: Patch) -> Iterator[tuple[str, Line]]:
    for edit in patch.edits:
        yield edit.file, Line("hunk", "where these lines stand")
        diff = patching.as_diff(Patch(name=patch.name, edits=[edit]))
        for text in filter(None, diff.split("\n")[3:]):  # after `---`, `+++` and `@@`
            if text[0] != "\\":  # "No newline at end of file": an edit may end within a line
                yield edit.file, Line(_KINDS.get(text[0], "same"), text[1:])
