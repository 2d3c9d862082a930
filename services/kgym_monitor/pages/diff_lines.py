"""Numbered lines of a unified diff, for the diff view. Pure; linear time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kgym.api.steps import Patch

# Most lines of a patch on a page.
SHOWN = 4000
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


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
    """Return at most SHOWN lines of the patch."""
    lines = _of_edits(patch) if patch.diff is None else _of_diff(patch.diff)
    shown: list[ChangedFile] = []
    paths: set[str] = set()
    count = left_out = 0
    for path, line in lines:
        paths.add(path)
        if count >= SHOWN:
            left_out += 1
            continue
        if not shown or shown[-1].path != path:
            shown.append(ChangedFile(path))
        count += 1
        shown[-1].lines.append(line)
        shown[-1].added += line.kind == "added"
        shown[-1].removed += line.kind == "removed"
    return ShownPatch(shown, paths, left_out)


def _of_diff(diff: str) -> Iterator[tuple[str, Line]]:
    path, old, new, within = "", 0, 0, False
    for text in diff.split("\n"):
        if hunk := _HUNK.match(text):
            old, new, within = int(hunk[1]), int(hunk[2]), True
            yield path, Line("hunk", text)
        # Between hunks: headers of Git, of Subversion, or prose of a mail.
        elif not within or text.startswith(("diff ", "Index: ")):
            within = False
            if text.startswith(("+++ ", "--- ")) and not text.endswith("/dev/null"):
                path = re.sub("^[ab]/", "", text[4:].split("\t")[0])
        elif text.startswith("--- "):  # next file, without a `diff` line before it
            within, path = False, re.sub("^[ab]/", "", text[4:].split("\t")[0])
        elif text.startswith("+"):
            yield path, Line("added", text[1:], None, new)
            new += 1
        elif text.startswith("-"):
            yield path, Line("removed", text[1:], old)
            old += 1
        elif text.startswith(" "):
            yield path, Line("same", text[1:], old, new)
            old, new = old + 1, new + 1


def _of_edits(patch: Patch) -> Iterator[tuple[str, Line]]:
    for edit in patch.edits:
        yield edit.file, Line("hunk", "replaces the only occurrence of")
        for text in edit.original.split("\n"):
            yield edit.file, Line("removed", text)
        for text in edit.replacement.split("\n"):
            yield edit.file, Line("added", text)
